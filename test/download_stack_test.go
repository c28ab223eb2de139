// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// cutServer serves data, and aborts the connection in the middle of its first
// responses, as many as breaks says.
type cutServer struct {
	data   []byte
	breaks int32
	n      atomic.Int32
	asked  chan *http.Request // every request

	// change changes the header of every response.
	change func(http.Header)
}

func newCutServer(size int, breaks int32) *cutServer {
	return &cutServer{data: randomBytes(size, 1), breaks: breaks, asked: make(chan *http.Request, 100)}
}

func (s *cutServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked <- r
	w.Header().Set("ETag", `"a"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	if s.change != nil {
		s.change(w.Header())
	}
	if s.n.Add(1) <= s.breaks {
		w = &cutWriter{w, len(s.data) / 4}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.data))
}

// requests returns the requests so far.
func (s *cutServer) requests() (all []*http.Request) {
	for range len(s.asked) {
		all = append(all, <-s.asked)
	}
	return all
}

// cutWriter aborts the connection after a number of bytes.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	n, err := w.ResponseWriter.Write(p[:min(len(p), w.left)])
	if w.left -= n; w.left == 0 {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// A reverse proxy over a Transport hides the breaks of its upstream from its
// clients. Length and validators are those of the first response, hop-by-hop
// fields stay on their hop, and the bytes that have arrived are passed on
// before the rest is requested.
//
//retrip:promise P20
func TestResume_BelowReverseProxy(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2} {
		bubble(t, proto.String(), func(t *testing.T) {
			upstream := newCutServer(300_000, 2)
			upstream.change = func(h http.Header) {
				if proto == memhttp.HTTP1 {
					h.Set("Connection", "X-Hop")
					h.Set("X-Hop", "upstream")
				}
			}
			back := memhttp.NewServer(t, proto, upstream)
			proxy := httputil.NewSingleHostReverseProxy(play.Must(url.Parse(back.URL)))
			proxy.FlushInterval, proxy.ErrorLog = -1, log.New(io.Discard, "", 0)
			proxy.Transport = &retrip.Transport{Base: back.Transport(), Policy: retrip.Policy{Resume: 24 * time.Hour, BodyIdleTimeout: time.Second, Backoff: retrip.Backoff{Base: time.Minute, Cap: time.Minute, Jitter: retrip.NoJitter}, MaxWait: time.Hour}}
			front := memhttp.NewServer(t, memhttp.HTTP1, proxy)

			req := play.Must(http.NewRequest(http.MethodGet, front.URL, nil))
			req.Header.Set("Connection", "X-Mine")
			req.Header.Set("X-Mine", "client")
			began := time.Now()
			resp, err := front.Transport().RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			assert.EqualValues(t, 300_000, resp.ContentLength)
			assert.Equal(t, `"a"`, resp.Header.Get("ETag"))
			assert.Empty(t, resp.Header.Get("X-Hop"))
			first := make([]byte, 75_000)
			_, err = io.ReadFull(resp.Body, first)
			require.NoError(t, err)
			assert.Less(t, time.Since(began), time.Minute, "held back until the rest arrived")
			rest, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(upstream.data, slices.Concat(first, rest)))
			assert.GreaterOrEqual(t, time.Since(began), 2*time.Minute)
			asked := upstream.requests()
			require.Len(t, asked, 3)
			assert.Equal(t, "bytes=75000-299999", asked[1].Header.Get("Range"))
			assert.Equal(t, "bytes=150000-299999", asked[2].Header.Get("Range"))
			for _, r := range asked {
				assert.Empty(t, r.Header.Get("X-Mine"))
			}
		})
	}
}

// A part that the caller requested arrives whole, in whatever form it was
// requested. Several parts break as without Resume, unless the server answers
// with the whole file.
func TestResume_CallersRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			asked       string
			first, last int
			ifRange     bool
			broken      bool
		}{
			{asked: "bytes=100000-", first: 100_000, last: 299_999},
			{asked: "bytes=-200000", first: 100_000, last: 299_999},
			{asked: "bytes=100000-299998", first: 100_000, last: 299_998},
			{asked: "bytes=100000-299998", first: 100_000, last: 299_998, ifRange: true},
			{asked: "bytes=100000-99999999", first: 100_000, last: 299_999},
			{asked: "bytes= 100000-199999 ", first: 100_000, last: 199_999},
			{asked: "bytes=0-150000,100-", first: 0, last: 299_999},
			{asked: "bytes=100000-199999,", first: 100_000, last: 199_999, broken: true},
			{asked: "bytes=0-99999,200000-", broken: true},
			{asked: "bytes=100000-199999, 0-0", broken: true},
		} {
			s := newCutServer(300_000, 1)
			server := memhttp.NewServer(t, memhttp.HTTP1, s)
			req := play.Must(http.NewRequest(http.MethodGet, server.URL, nil))
			req.Header.Set("Range", c.asked)
			if c.ifRange {
				req.Header.Set("If-Range", `"a"`)
			}
			resp := do(t, &retrip.Transport{Base: server.Transport(), Policy: retrip.Policy{Resume: time.Minute}}, req)
			got, err := readAll(t, resp)
			asked := s.requests()
			if c.broken {
				assert.ErrorIs(t, err, io.ErrUnexpectedEOF, c.asked)
				assert.Len(t, asked, 1, c.asked)
				continue
			}
			require.NoError(t, err, c.asked)
			assert.True(t, bytes.Equal(s.data[c.first:c.last+1], got), c.asked)
			require.Len(t, asked, 2, c.asked)
			assert.Equal(t, fmt.Sprintf("bytes=%d-%d", c.first+75_000, c.last), asked[1].Header.Get("Range"))
		}
	})
}
