// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"fmt"
	"io"
	"net/http"
)

// Cutter is a context that can be ended.
type Cutter interface{ Cut() }

// Releasing is a response body that ends the context of its attempt when it is
// closed, and also with its last byte unless the request body may still need
// the context.
type Releasing struct {
	io.ReadCloser
	context   Cutter // of the attempt
	uploading bool
}

// Release turns b into body.
func (b *Releasing) Release(body io.ReadCloser, context Cutter, uploading bool) {
	b.ReadCloser, b.context, b.uploading = body, context, uploading
}

func (b *Releasing) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.uploading {
		b.context.Cut()
	}
	return n, err
}

func (b *Releasing) Close() error {
	defer b.context.Cut() // even if Close panics
	return b.ReadCloser.Close()
}

// EndWith cuts c when the body of resp is closed. If it has no body, that is now.
func EndWith(resp *http.Response, c Cutter) {
	switch b := resp.Body.(type) {
	case nil:
		c.Cut()
	case io.ReadWriteCloser:
		resp.Body = NewReleasingConn(b, c)
	default:
		if b == http.NoBody {
			c.Cut()
			return
		}
		resp.Body = &Releasing{ReadCloser: b, context: c, uploading: true}
	}
}

// ReleasingConn is a Releasing that can also be written to.
type ReleasingConn struct {
	io.ReadWriteCloser
	context Cutter
}

// NewReleasingConn returns body as one whose Close ends context.
func NewReleasingConn(body io.ReadWriteCloser, context Cutter) *ReleasingConn {
	return &ReleasingConn{body, context}
}

func (b *ReleasingConn) Close() error {
	defer b.context.Cut()
	return b.ReadWriteCloser.Close()
}

// CloseWrite closes the writing direction, if the body below can.
func (b *ReleasingConn) CloseWrite() error {
	if c, ok := b.ReadWriteCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}
