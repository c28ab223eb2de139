// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"bufio"
	"io"
	"net"
	"net/http"

	"github.com/retrip/retrip/internal/syntax"
)

// response is the ResponseWriter of a request that is being served. It makes room for
// another request as soon as the response proves to be a stream.
type response struct {
	http.ResponseWriter
	state  *state
	slot   *slot // guarded by state.mu; nil once the handler has returned
	tunnel bool  // the request is a CONNECT
	upload bool  // net/http would read the body before it answers
	begun  bool  // the response header has been seen
}

// release makes room for another request.
func (w *response) release() {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.slot != nil {
		s.release(w.slot, s.nowIfNeeded())
	}
}

// leave returns the slot of the request, whose handler has returned.
func (w *response) leave() {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finish(w.slot, s.nowIfNeeded())
	w.slot = nil
}

// begin inspects the header of a response that is about to start.
func (w *response) begin(status int) {
	if w.begun || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.begun = true
	if status == http.StatusRequestEntityTooLarge && w.upload {
		// http.MaxBytesReader would tell net/http not to read the rest.
		w.Header()["Connection"] = refusalClose
	}
	if status == http.StatusSwitchingProtocols || w.tunnel && status < 300 || syntax.IsStream(w.Header()) {
		w.release()
	}
}

// WriteHeader implements [http.ResponseWriter].
func (w *response) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *response) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// WriteString implements [io.StringWriter].
func (w *response) WriteString(text string) (int, error) {
	w.begin(http.StatusOK)
	return io.WriteString(w.ResponseWriter, text)
}

// ReadFrom implements [io.ReaderFrom], so that the ResponseWriter below may
// send a file without copying it.
func (w *response) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	return io.Copy(w.ResponseWriter, r)
}

// Flush implements [http.Flusher].
func (w *response) Flush() { _ = w.FlushError() }

// FlushError implements flushing for [http.ResponseController].
func (w *response) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements [http.Hijacker]. If the connection can't be taken over, as
// over HTTP/2, the error is http.ErrNotSupported.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.release()
	}
	return conn, rw, err
}

// Push implements [http.Pusher].
func (w *response) Push(target string, options *http.PushOptions) error {
	if below, ok := w.ResponseWriter.(http.Pusher); ok {
		return below.Push(target, options)
	}
	return http.ErrNotSupported
}

// CloseNotify implements http.CloseNotifier, without which gin's Context.Stream
// panics. If the ResponseWriter below doesn't, the channel never receives anything.
func (w *response) CloseNotify() <-chan bool {
	if below, ok := w.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return below.CloseNotify()
	}
	return nil
}

// Unwrap gives [http.ResponseController] access to the ResponseWriter below.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }
