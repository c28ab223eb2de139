// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed

import (
	"io"
	"net/http"
)

// ahead is the body of a request that is read while the request waits. Over
// HTTP/1.1, net/http learns that a client has gone only once the body has been
// read.
type ahead struct {
	io.ReadCloser
	done     chan struct{} // closed when the fields below are final
	read     []byte        // not yet read by the handler
	err      error         // that follows read
	panicked any           // what the body has panicked with
}

// mostAhead bounds the bodies that are read ahead.
const mostAhead = 16 << 10

// readAhead begins to read the body of r, unless it is long, or the client
// waits to be asked for it. It returns nil if it doesn't read.
func readAhead(w http.ResponseWriter, r *http.Request) *ahead {
	if !hasUnread(r) || r.ContentLength > mostAhead || r.Header["Expect"] != nil || !hasReadDeadline(w) {
		return nil
	}
	a := &ahead{ReadCloser: r.Body, done: make(chan struct{}), read: make([]byte, 0, max(512, r.ContentLength))}
	go a.fill()
	return a
}

func (a *ahead) fill() {
	defer close(a.done)
	defer func() { a.panicked = recover() }()
	for a.err == nil && len(a.read) <= mostAhead {
		if len(a.read) == cap(a.read) {
			a.read = append(a.read, 0)[:len(a.read)]
		}
		var n int
		n, a.err = a.ReadCloser.Read(a.read[len(a.read):cap(a.read)])
		a.read = a.read[:len(a.read)+n]
	}
}

// wait returns when nothing reads ahead any more: the body mustn't be read when
// its request has ended.
func (a *ahead) wait() {
	if a != nil {
		<-a.done
	}
}

// Read reads what has been read ahead, and then the rest.
func (a *ahead) Read(p []byte) (n int, err error) {
	<-a.done
	switch {
	case len(a.read) > 0:
		n = copy(p, a.read)
		a.read = a.read[n:]
	case a.panicked != nil:
		panic(a.panicked)
	case a.err != nil:
		err, a.err = a.err, nil
	default:
		return a.ReadCloser.Read(p)
	}
	return n, err
}
