// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// Releasing ends the context of its attempt with its last byte, unless the
// request's body may still need it, and when it is closed.
type Releasing struct {
	io.ReadCloser
	cancel    context.CancelCauseFunc
	uploading bool
}

// Release makes b the body given.
func (b *Releasing) Release(body io.ReadCloser, cancel context.CancelCauseFunc, uploading bool) {
	b.ReadCloser, b.cancel, b.uploading = body, cancel, uploading
}

func (b *Releasing) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.uploading {
		b.cancel(nil)
	}
	return n, err
}

func (b *Releasing) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// ReleasingConn is a Releasing that can be written to.
type ReleasingConn struct {
	io.ReadWriteCloser
	cancel context.CancelCauseFunc
}

// NewReleasingConn returns a body that calls cancel when it is closed.
func NewReleasingConn(body io.ReadWriteCloser, cancel context.CancelCauseFunc) *ReleasingConn {
	return &ReleasingConn{body, cancel}
}

func (b *ReleasingConn) Close() error {
	err := b.ReadWriteCloser.Close()
	b.cancel(nil)
	return err
}

// CloseWrite ends one direction, as net/http's own body can.
func (b *ReleasingConn) CloseWrite() error {
	if c, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}
