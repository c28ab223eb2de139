// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
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
// two responses.
type cutServer struct {
	data  []byte
	asked []string // for ranges
}

func (s *cutServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"a"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	if s.asked = append(s.asked, r.Header.Get("Range")); len(s.asked) <= 2 {
		w = &cutWriter{w, len(s.data) / 4}
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.data))
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

// A body that breaks twice on its way is whole. The bytes that have arrived are passed on before
// the rest is requested, as a proxy needs it.
//
//retrip:promise P20
func TestResume_OverTheNet(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2} {
		bubble(t, proto.String(), func(t *testing.T) {
			upstream := &cutServer{data: file[:300_000]}
			server := memhttp.NewServer(t, proto, upstream)
			policy := retrip.Policy{Resume: 24 * time.Hour, Backoff: retrip.Backoff{Base: time.Minute, Cap: time.Minute, Jitter: retrip.NoJitter}}
			began := time.Now()
			resp := do(t, &retrip.Transport{Base: server.Transport(), Policy: policy}, play.MustRequest(t, http.MethodGet, server.URL, nil))
			first := make([]byte, 75_000)
			_, err := io.ReadFull(resp.Body, first)
			require.NoError(t, err)
			assert.Zero(t, time.Since(began), "held back until the rest arrived")
			rest, err := readAll(t, resp)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(upstream.data, slices.Concat(first, rest)))
			assert.Equal(t, 2*time.Minute, time.Since(began))
			assert.Equal(t, []string{"", "bytes=75000-299999", "bytes=150000-299999"}, upstream.asked)
		})
	}
}

// stallingServer sends half of its text and stalls. The next silent requests get
// no response at all; those after them get the rest, by the function rest.
func stallingServer(t *testing.T, proto memhttp.Proto, silent int32, rest http.HandlerFunc) *memhttp.Server {
	var n atomic.Int32
	return memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch i := n.Add(1); {
		case i == 1:
			w.Header().Set("ETag", `"a"`)
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "01234")
			play.Flush(w)
		case i > 1+silent:
			w.Header().Set("ETag", `"a"`)
			w.Header().Set("Content-Range", "bytes 5-9/10")
			w.Header().Set("Content-Length", "5")
			rest(w, r)
			return
		}
		<-r.Context().Done()
	}))
}

func wholeRest(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.WriteString(w, "56789")
}

// With BodyIdleTimeout, a continuation also gets a response in time, or ends.
//
//retrip:promise P20
func TestBodyIdle_SilentContinuation(t *testing.T) {
	for _, proto := range play.Protos {
		for _, attemptTimeout := range []time.Duration{0, time.Second / 2, time.Hour} {
			for _, silent := range []int32{0, 2, 1000} {
				play.Bubble(t, fmt.Sprintf("%s/AttemptTimeout %s/%d", proto, attemptTimeout, silent), func(t *testing.T) {
					s := stallingServer(t, proto, silent, wholeRest)
					tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{
						Resume: time.Minute, BodyIdleTimeout: time.Second, AttemptTimeout: attemptTimeout, Budget: retrip.Off,
						Backoff: retrip.Backoff{Base: time.Nanosecond, Cap: time.Nanosecond},
					}}
					defer tr.CloseIdleConnections()
					resp := do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
					defer resp.Body.Close()
					began := time.Now()
					got, err := io.ReadAll(resp.Body)
					if silent == 1000 {
						assert.LessOrEqual(t, time.Since(began), time.Minute+1500*time.Millisecond)
						assert.Equal(t, "01234", string(got))
						assert.ErrorContains(t, err, "BodyIdleTimeout")
						return
					}
					assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond+time.Duration(silent)*time.Second+time.Millisecond)
					require.NoError(t, err)
					assert.Equal(t, "0123456789", string(got))
				})
			}
		}
	}
}

// After a stall over HTTP/2, whose connection other requests share, the rest
// comes over another connection even if the base may have only one. Over HTTP/1
// the rest waits for its turn at the one connection.
func TestResume_KnowsHTTP2(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2} {
		play.Bubble(t, proto.String(), func(t *testing.T) {
			s := stallingServer(t, proto, 0, func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/other" {
					<-r.Context().Done()
					return
				}
				wholeRest(w, r)
			})
			base := s.Transport()
			base.MaxConnsPerHost = 1
			tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second}}
			defer tr.CloseIdleConnections()
			resp := do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
			defer resp.Body.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			go func() { _, _ = base.RoundTrip(play.MustRequest(t, "GET", s.URL+"/other", nil).WithContext(ctx)) }()
			synctest.Wait()
			require.Equal(t, 1, s.Listener.Dials())
			got, err := io.ReadAll(resp.Body)
			assert.Equal(t, 2, s.Listener.Dials())
			if proto == memhttp.HTTP1 {
				assert.Equal(t, "01234", string(got), "the other request has the connection")
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "0123456789", string(got))
		})
	}
}

// If a body that must be whole stalls, its connection is suspect, as after a timeout:
// over HTTP/2, the retry uses another one.
func TestWholeBody_StallIsDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := stallingServer(t, memhttp.HTTP2, 0, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Del("Content-Range")
			_, _ = io.WriteString(w, "again")
		})
		tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{WholeBody: 1000, BodyIdleTimeout: time.Second}}
		defer tr.CloseIdleConnections()
		assert.Equal(t, "again", play.Finish(t, do(t, tr, play.MustRequest(t, "GET", s.URL, nil))))
		assert.Equal(t, 2, s.Listener.Dials())
	})
}
