// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync/atomic"
	"unsafe"
)

type bodyKind uint8

const (
	noBody     bodyKind = iota
	memoryBody          // GetBody makes a new one; it is in memory and can't fail
	gottenBody          // GetBody makes a new one
	onceBody            // it can be had only once
)

// kindOf tells how the body of req can be had again.
func kindOf(req *http.Request) bodyKind {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return noBody
	case req.GetBody == nil:
		return onceBody
	case sound(req.Body, req.ContentLength):
		return memoryBody
	default:
		return gottenBody
	}
}

// sound reports whether body can neither fail nor have another length than the
// declared one, which is unknown if it is not positive.
func sound(body io.ReadCloser, length int64) bool {
	n, ok := inMemory(body)
	return ok && (length <= 0 || length == n)
}

// inMemory reports whether body is what http.NewRequest makes of a buffer, byte
// slice or string, and how many bytes are still to be read.
func inMemory(body io.ReadCloser) (unread int64, ok bool) {
	if reflect.TypeOf(body) != nopCloserWriterToType || !nopCloserIsReader {
		return 0, false
	}
	// Every POST passes here. Reflection would take as long as all the rest of
	// a request that succeeds: the interface points to a struct that is nothing
	// but an io.Reader.
	type words struct{ _, data unsafe.Pointer }
	switch r := (*(*io.Reader)((*words)(unsafe.Pointer(&body)).data)).(type) {
	case *bytes.Reader:
		return int64(r.Len()), true
	case *strings.Reader:
		return int64(r.Len()), true
	case *bytes.Buffer:
		return int64(r.Len()), true
	}
	return 0, false
}

// nopCloserIsReader reports whether a nopCloserWriterToType is still what
// inMemory takes it for.
var nopCloserIsReader = nopCloserWriterToType.Kind() == reflect.Struct && nopCloserWriterToType.NumField() == 1 &&
	nopCloserWriterToType.Field(0).Type == reflect.TypeFor[io.Reader]()

var (
	nopCloserType         = reflect.TypeOf(io.NopCloser(nil))
	nopCloserWriterToType = reflect.TypeOf(io.NopCloser(struct {
		io.Reader
		io.WriterTo
	}{}))
)

// faulty reports whether the body of a request is at fault, of which n bytes
// were read, the last ones with err. The declared length is unknown if it is
// not positive.
func faulty(length, n int64, err error) bool {
	switch {
	case err != nil && err != io.EOF:
		return true
	case length <= 0:
		return false
	default:
		return n > length || err == io.EOF && n < length
	}
}

// watchedBody is a body of the caller's on its way to the base. It notices when
// the body is at fault, and not the host.
type watchedBody struct {
	io.ReadCloser
	length int64
	n      int64
	closed atomic.Bool
	fault  *atomic.Bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.n += int64(n)
	// Once it is closed, a body may fail as it likes.
	if faulty(b.length, b.n, err) && !b.closed.Load() {
		b.fault.Store(true)
	}
	return n, err
}

func (b *watchedBody) Close() error {
	b.closed.Store(true)
	return b.ReadCloser.Close()
}
