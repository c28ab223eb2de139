// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package play

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"

	"github.com/retrip/retrip/internal/memhttp"
)

// H2Server speaks just enough HTTP/2 without TLS to answer streams in ways that
// real servers can't be asked for. answer gets the numbers of the connection
// and the stream, from 1, and writes the stream's frames.
func H2Server(t *testing.T, answer func(w *H2Writer, conn int, stream uint32)) (*http.Transport, *memhttp.Listener) {
	return H2EarlyServer(t, func(w *H2Writer, conn int, stream uint32, sent int) {
		if sent >= 0 {
			answer(w, conn, stream)
		}
	})
}

// H2EarlyServer is an [H2Server] that may answer before it gets the request
// body. It calls answer twice for a request with a body: first with a negative
// sent, and at the end of the body with its length.
func H2EarlyServer(t *testing.T, answer func(w *H2Writer, conn int, stream uint32, sent int)) (*http.Transport, *memhttp.Listener) {
	l := memhttp.Listen()
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range conns {
			c.Close()
		}
	})
	go func() {
		for conn := 1; ; conn++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, c)
			mu.Unlock()
			go serveH2(c, conn, answer)
		}
	}()
	tr := &http.Transport{DialContext: l.Dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return tr, l
}

// H2Writer writes the frames of an [H2Server] to one connection.
type H2Writer struct{ net.Conn }

func (w *H2Writer) frame(kind, flags byte, stream uint32, payload ...byte) {
	head := []byte{0, byte(len(payload) >> 8), byte(len(payload)), kind, flags, 0, 0, 0, 0}
	binary.BigEndian.PutUint32(head[5:], stream)
	_, _ = w.Write(append(head, payload...))
}

// OK answers the stream with status 200 and no body.
func (w *H2Writer) OK(stream uint32) { w.frame(1, 4|1, stream, 0x88) } // HEADERS: END_HEADERS, END_STREAM, ":status: 200"

// Part answers the stream with status 200 and a part of a body.
func (w *H2Writer) Part(stream uint32, text string) {
	w.frame(1, 4, stream, 0x88)
	w.frame(0, 0, stream, []byte(text)...)
}

// End ends an answer that began with a part.
func (w *H2Writer) End(stream uint32) { w.frame(0, 1, stream) }

// Reset ends the stream with an error code.
func (w *H2Writer) Reset(stream, code uint32) {
	w.frame(3, 0, stream, binary.BigEndian.AppendUint32(nil, code)...)
}

// MaxStreams limits the concurrent streams of the connection.
func (w *H2Writer) MaxStreams(n byte) { w.frame(4, 0, 0, 0, 3, 0, 0, 0, n) } // SETTINGS

// GoAway says that no stream after last was or will be processed.
func (w *H2Writer) GoAway(last, code uint32) {
	w.frame(7, 0, 0, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, last), code)...)
}

func serveH2(c net.Conn, conn int, answer func(w *H2Writer, conn int, stream uint32, sent int)) {
	defer c.Close()
	r, w := bufio.NewReader(c), &H2Writer{c}
	if _, err := io.ReadFull(r, make([]byte, len("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))); err != nil {
		return
	}
	w.frame(4, 0, 0)
	sent := map[uint32]int{}
	for {
		head := make([]byte, 9)
		if _, err := io.ReadFull(r, head); err != nil {
			return
		}
		n := int64(head[0])<<16 | int64(head[1])<<8 | int64(head[2])
		if _, err := io.CopyN(io.Discard, r, n); err != nil {
			return
		}
		stream := binary.BigEndian.Uint32(head[5:])
		switch kind, flags := head[3], head[4]; {
		case kind == 4 && flags&1 == 0:
			w.frame(4, 1, 0)
		case kind == 1 && flags&1 == 0:
			answer(w, conn, stream, -1)
		case kind <= 1:
			if kind == 0 && n > 0 {
				sent[stream] += int(n)
				w.frame(8, 0, 0, binary.BigEndian.AppendUint32(nil, uint32(n))...)
			}
			if flags&1 != 0 { // the request is complete
				answer(w, conn, stream, sent[stream])
			}
		}
	}
}

// StreamError looks like net/http's own error for a stream that was reset, whose
// type is unexported.
type StreamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e StreamError) Error() string {
	return fmt.Sprintf("stream error: stream ID %d; %d", e.StreamID, e.Code)
}
