// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package body has what there is to do with the bodies of requests and
// responses, whoever they belong to.
package body

import (
	"bytes"
	"io"
	"reflect"
	"strings"
	"unsafe"
)

// Sound reports whether body can neither fail nor have another length than the
// declared one, which is unknown if it is not positive.
func Sound(body io.ReadCloser, length int64) bool {
	n, ok := InMemory(body)
	return ok && (length <= 0 || length == n)
}

// InMemory reports whether body is what http.NewRequest makes of a buffer, byte
// slice or string, and how many bytes are still to be read.
func InMemory(body io.ReadCloser) (unread int64, ok bool) {
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
// InMemory takes it for.
var nopCloserIsReader = nopCloserWriterToType.Kind() == reflect.Struct && nopCloserWriterToType.NumField() == 1 &&
	nopCloserWriterToType.Field(0).Type == reflect.TypeFor[io.Reader]()

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
