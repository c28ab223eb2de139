// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/shed"
)

// slowly is an upload that pauses before each kilobyte.
type slowly struct {
	size  int
	pause time.Duration
}

func (s *slowly) Read(p []byte) (int, error) {
	if s.size == 0 {
		return 0, io.EOF
	}
	time.Sleep(s.pause)
	n := min(len(p), s.size, 1<<10)
	s.size -= n
	return n, nil
}

// A refusal doesn't wait for the rest of an upload, of known or unknown length,
// whether or not the client waits for a 100.
func TestRefusal_DoesNotWaitForAnUpload(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		s := newSite(t, proto, &shed.Handler{Handler: sleeping, Limit: 1, DeadlineHeader: "Timeout-Ms"})
		s.base.ExpectContinueTimeout = time.Second
		for _, size := range []int{1, 1 << 10, 100 << 10, 300 << 10, 3 << 20} {
			for _, known := range []bool{true, false} {
				for _, header := range []string{"A: b", "Expect: 100-continue"} {
					t.Log(size, known, header)
					req, err := http.NewRequestWithContext(t.Context(), "POST", s.URL+"/0s", &slowly{size, 10 * ms})
					require.NoError(t, err)
					if known {
						req.ContentLength = int64(size)
					}
					setHeader(req, []string{header, "Timeout-Ms: 0"})
					start := time.Now()
					resp, err := s.base.RoundTrip(req)
					require.NoError(t, err)
					text, err := io.ReadAll(resp.Body)
					took := time.Since(start)
					require.NoError(t, err)
					resp.Body.Close()
					assert.Equal(t, 503, resp.StatusCode)
					assert.Equal(t, "overloaded\n", string(text))
					assert.LessOrEqual(t, took, ms)
				}
			}
		}
		time.Sleep(time.Minute) // the uploads end
		assert.LessOrEqual(t, s.Listener.Open(), 1)
	})
}

// An outer handler may hide what a refusal needs to read on. The refusal still
// comes at once.
func TestRefusal_BehindAnotherWriter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &shed.Handler{Handler: sleeping, Limit: 1, DeadlineHeader: "Timeout-Ms"}
		s := newSite(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.ServeHTTP(struct{ http.ResponseWriter }{w}, r)
		}))
		a := do(t.Context(), s.base, "POST", s.URL+"/0s", &slowly{100 << 10, 10 * ms}, "Timeout-Ms: 0")
		assert.NoError(t, a.err)
		assert.Equal(t, 503, a.status)
		assert.Zero(t, a.took)
		time.Sleep(time.Minute)
	})
}

// However many uploads are refused, few connections stay open for them, and
// little is read.
func TestRefusal_BoundsUploads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := memhttp.NewServer(t, memhttp.HTTP1, &shed.Handler{Limit: 1, DeadlineHeader: "Timeout-Ms"})
		dial := func() net.Conn {
			conn, err := s.Listener.Dial(t.Context(), "tcp", s.Listener.Addr().String())
			require.NoError(t, err)
			_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nTimeout-Ms: 0\r\nContent-Length: %d\r\n\r\n", 1<<30)
			require.NoError(t, err)
			return conn
		}
		var ended []time.Duration
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := time.Now()
		for range 300 {
			conn := dial()
			wg.Go(func() {
				defer conn.Close()
				all, err := io.ReadAll(conn)
				mu.Lock()
				defer mu.Unlock()
				assert.NoError(t, err)
				assert.Contains(t, string(all), "503")
				ended = append(ended, time.Since(start))
			})
		}
		wg.Wait()
		slices.Sort(ended)
		assert.LessOrEqual(t, ended[199], time.Second)
		assert.InDelta(t, 5, ended[200].Seconds(), 1)
		assert.InDelta(t, 5, ended[299].Seconds(), 1)

		conn := dial()
		defer conn.Close()
		sent, err := io.Copy(conn, io.LimitReader(zeros{}, 1<<30))
		require.Error(t, err)
		assert.InDelta(t, 32<<20, sent, 2<<20)
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
