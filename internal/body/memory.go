// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package body handles the bodies of requests and responses: it watches, drains
// and closes them, reads ahead, requires progress, and continues a body with
// another response.
package body

import (
	"bytes"
	"io"
	"net/http"
	"reflect"
	"strings"
)

// Sound reports whether body can neither fail nor differ in length from the
// declared length. A length that is not positive is unknown.
func Sound(body io.ReadCloser, length int64) bool {
	n, ok := InMemory(body)
	return ok && (length <= 0 || length == n)
}

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
