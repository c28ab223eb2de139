// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
)

// stream is the ResponseWriter of a request whose response may be long-lived.
// It makes room for another request as soon as the response proves to be a
// stream.
type stream struct {
	http.ResponseWriter
	state  *state
	slot   *slot // guarded by state.mu; nil once the handler has returned
	tunnel bool  // the request is a CONNECT
	begun  bool  // the response header has been seen
}

// release makes room for another request.
func (w *stream) release() {
	s := w.state
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.slot != nil {
		s.release(w.slot, s.nowIfNeeded())
	}
}

// begin inspects the header of a response that is about to start.
func (w *stream) begin(status int) {
	if w.begun || status < 200 && status != http.StatusSwitchingProtocols {
		return
	}
	w.begun = true
	if status == http.StatusSwitchingProtocols || w.tunnel && status < 300 || strings.HasPrefix(w.Header().Get("Content-Type"), eventStream) {
		w.release()
	}
}

// WriteHeader implements [http.ResponseWriter].
func (w *stream) WriteHeader(status int) {
	w.begin(status)
	w.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *stream) Write(p []byte) (int, error) {
	w.begin(http.StatusOK)
	return w.ResponseWriter.Write(p)
}

// ReadFrom implements [io.ReaderFrom], so that the ResponseWriter below may
// send a file without copying it.
func (w *stream) ReadFrom(r io.Reader) (int64, error) {
	w.begin(http.StatusOK)
	return io.Copy(w.ResponseWriter, r)
}

// Flush implements [http.Flusher].
func (w *stream) Flush() { _ = w.FlushError() }

// FlushError implements flushing for [http.ResponseController].
func (w *stream) FlushError() error {
	w.begin(http.StatusOK)
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Hijack implements [http.Hijacker]. If the connection can't be taken over, as
// over HTTP/2, the error is http.ErrNotSupported.
func (w *stream) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err == nil {
		w.release()
	}
	return conn, rw, err
}

// Unwrap gives [http.ResponseController] access to the ResponseWriter below.
func (w *stream) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// mayLast reports whether the response to r may be a stream. Whether it is one
// depends on the handler.
func mayLast(r *http.Request) bool {
	if r.Method == http.MethodConnect || r.Header["Upgrade"] != nil {
		return true
	}
	return slices.ContainsFunc(r.Header["Accept"], func(value string) bool { return strings.Contains(value, eventStream) })
}

const eventStream = "text/event-stream"
