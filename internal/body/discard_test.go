// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/testenv"
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
				most := time.Hour
				if (i+j)%2 == 0 {
					most = time.Duration(j%20) * time.Microsecond
				}
				data := bytes.NewReader(make([]byte, 50))
				b := newPiece(iotest.OneByteReader(data))
				drainHere(new(http.Request), b, most)
				assert.True(t, most < time.Hour || data.Len() == 0, "closed before its end")
				assert.LessOrEqual(t, b.closed.Load(), int32(1))
			}
		})
	}
	wg.Wait()
}

// The bodies of http.Transport are known by the names of their types. If this fails with a
// new release of Go, net/http has moved one: each discarded body takes a goroutine.
func TestCloses(t *testing.T) {
	for proto, want := range map[memhttp.Proto]closeKind{memhttp.HTTP1: inTime, memhttp.HTTPS: inTime, memhttp.HTTP2: atOnce, memhttp.H2C: atOnce} {
		for _, encoding := range []string{"identity", "gzip"} {
			testenv.Bubble(t, fmt.Sprint(proto, " ", encoding), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Encoding", encoding)
					_, _ = io.WriteString(w, "x")
				}))
				req, err := http.NewRequest("GET", s.URL, nil)
				require.NoError(t, err)
				resp, err := s.Transport().RoundTrip(req)
				require.NoError(t, err)
				defer resp.Body.Close()
				assert.Equal(t, encoding == "gzip", resp.Uncompressed)
				assert.Equal(t, want, closes(resp.Body), "%T", resp.Body)
			})
		}
	}
	// Its Close waits for a Read.
	resp, err := http.ReadResponse(bufio.NewReader(strings.NewReader("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	assert.Equal(t, unknown, closes(resp.Body), "%T", resp.Body)
}
