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
	uploading bool   // only Close is the end
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

// EndWith cuts c when the body of resp is closed, and also with its last byte unless
// uploading is set. If there is no body, that is now. The new body of resp is r, unless it
// must be another.
func EndWith(resp *http.Response, c Cutter, uploading bool, r *Releasing) {
	switch b := resp.Body.(type) {
	case nil:
		c.Cut()
	case io.ReadWriteCloser:
		// After 101 Switching Protocols, one direction may end before the
		// other, so only Close is the end.
		resp.Body = &releasingConn{Releasing: Releasing{b, c, true}, Writer: b}
	default:
		if b == http.NoBody && !uploading {
			c.Cut()
			return
		}
		r.ReadCloser, r.context, r.uploading = b, c, uploading
		resp.Body = r
	}
}

// releasingConn is a Releasing that can also be written to.
type releasingConn struct {
	Releasing
	io.Writer
}

// CloseWrite closes the writing direction, if the body below can.
func (b *releasingConn) CloseWrite() error {
	if c, ok := b.ReadCloser.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return fmt.Errorf("CloseWrite: %w", http.ErrNotSupported)
}
