// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package body handles the bodies of requests and responses: it watches, drains
// and closes them, reads ahead, requires progress, and continues a body with
// another response.
package body

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"reflect"
	"strings"
	"time"
)

// InMemory reports whether body is http.NoBody, or what http.NewRequest makes from a
// buffer, byte slice or string. It returns the number of bytes still to be read.
func InMemory(body io.ReadCloser) (unread int64, ok bool) {
	if reflect.TypeOf(body) != nopCloserWriterToType {
		return 0, body == http.NoBody
	}
	switch r := reflect.ValueOf(body).Field(0).Interface().(type) {
	case *bytes.Reader:
		return int64(r.Len()), true
	case *strings.Reader:
		return int64(r.Len()), true
	case *bytes.Buffer:
		return int64(r.Len()), true
	}
	return 0, false
}

// Copy returns a new body of what is unread of body, which must be in memory.
func Copy(body io.ReadCloser) io.ReadCloser {
	switch r := Unwrap(body).(type) {
	case *bytes.Reader:
		return io.NopCloser(new(*r))
	case *strings.Reader:
		return io.NopCloser(new(*r))
	case *bytes.Buffer:
		return io.NopCloser(bytes.NewReader(r.Bytes()))
	}
	return body // http.NoBody
}

var nopCloserWriterToType = reflect.TypeOf(io.NopCloser(struct {
	io.Reader
	io.WriterTo
}{}))

// Unwrap returns the reader inside an [io.NopCloser], or body itself.
func Unwrap(body io.ReadCloser) io.Reader {
	if t := reflect.TypeOf(body); t == nopCloserType || t == nopCloserWriterToType {
		reader, _ := reflect.ValueOf(body).Field(0).Interface().(io.Reader)
		return reader
	}
	return body
}

var nopCloserType = reflect.TypeOf(io.NopCloser(nil))

// CloseIn closes body, and reports whether Close has returned. It doesn't wait for that any
// longer than the given time, or until ctx ends or cancel is closed.
func CloseIn(ctx context.Context, cancel <-chan struct{}, body io.ReadCloser, most time.Duration) bool {
	if t := reflect.TypeOf(body); t == nopCloserType || t == nopCloserWriterToType {
		return true
	}
	returned := make(chan struct{})
	var panicked any
	go func() {
		defer close(returned)
		defer func() { panicked = recover() }()
		body.Close()
	}()
	if !Await(returned, most, ctx.Done(), cancel) {
		return false
	}
	rethrow(panicked)
	return true
}
