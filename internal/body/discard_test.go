// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// stuck is a body whose Read blocks until it is closed.
type stuck struct {
	closed chan struct{}
	once   sync.Once
}

func (b *stuck) Read([]byte) (int, error) {
	<-b.closed
	return 0, errors.New("closed")
}

func (b *stuck) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// A drain ends when its time is up or the caller goes. In its first millisecond
// it doesn't check for the caller.
func TestDrainHere_Ends(t *testing.T) {
	const never = time.Hour
	for _, tt := range []struct{ most, goes, want time.Duration }{
		{100 * time.Millisecond, never, 100 * time.Millisecond},
		{100 * time.Millisecond, 30 * time.Millisecond, 30 * time.Millisecond},
		{100 * time.Millisecond, time.Microsecond, time.Millisecond},
		{100 * time.Millisecond, 0, time.Millisecond},
		{500 * time.Microsecond, 600 * time.Microsecond, 500 * time.Microsecond},
		{500 * time.Microsecond, 0, 500 * time.Microsecond},
	} {
		for _, legacy := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithTimeout(t.Context(), tt.goes)
				defer end()
				var cancel chan struct{}
				if legacy {
					cancel = make(chan struct{})
					gone := ctx.Done()
					ctx = t.Context()
					go func() { <-gone; close(cancel) }()
				}
				began := time.Now()
				drainHere(ctx, cancel, &stuck{closed: make(chan struct{})}, time.Now(), tt.most)
				assert.Equal(t, tt.want, time.Since(began), "%v, by Request.Cancel: %v", tt, legacy)
			})
		}
	}
}

// A recycled watch must not close the body of another request.
func TestDrainHere_Stress(t *testing.T) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 300 {
				most := time.Second
				if (i+j)%2 == 0 {
					most = time.Duration(j%20) * time.Microsecond
				}
				b := &counted{left: 50}
				drainHere(t.Context(), nil, b, time.Now(), most)
				b.mu.Lock()
				if most == time.Second {
					assert.Zero(t, b.left, "closed before its end")
				}
				assert.LessOrEqual(t, b.closes, 1)
				b.mu.Unlock()
			}
		})
	}
	wg.Wait()
}

// counted is a body that takes a given number of Reads.
type counted struct {
	mu           sync.Mutex
	left, closes int
}

func (b *counted) Read([]byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left == 0 || b.closes > 0 {
		return 0, io.EOF
	}
	b.left--
	return 1, nil
}

func (b *counted) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closes++
	return nil
}
