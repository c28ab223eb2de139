// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// drainHere drains b in this goroutine.
func drainHere(req *http.Request, b io.ReadCloser, most time.Duration) {
	d := drains.Get().(*drain)
	d.Discarding, d.wanted = Discarding{Resp: &http.Response{Body: b}, Req: req, Clock: time.Now(), Most: most}, true
	d.here()
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
				req := new(http.Request).WithContext(ctx)
				if legacy {
					req = &http.Request{Cancel: ctx.Done()} //lint:ignore SA1019 tested here
				}
				began := time.Now()
				drainHere(req, hanging(0), tt.most)
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
				data := bytes.NewReader(make([]byte, 50))
				b := newPiece(iotest.OneByteReader(data))
				drainHere(new(http.Request), b, most)
				assert.True(t, most < time.Second || data.Len() == 0, "closed before its end")
				assert.LessOrEqual(t, b.closed.Load(), int32(1))
			}
		})
	}
	wg.Wait()
}
