// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
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

// answersOK answers after the usual time.
func answersOK(w http.ResponseWriter, _ *http.Request) {
	time.Sleep(usual)
	_, _ = io.WriteString(w, "ok")
}

// eachProtocol runs f in a bubble for each protocol, with a server, and a Transport that
// has learned how long answers take and has saved up two hedges.
func eachProtocol(t *testing.T, p retrip.Policy, h http.HandlerFunc, f func(t *testing.T, s *memhttp.Server, tr *retrip.Transport)) {
	for _, proto := range play.Protos {
		bubble(t, proto.String(), func(t *testing.T) {
			s := memhttp.NewServer(t, proto, h)
			base := s.Transport()
			base.MaxIdleConnsPerHost = 16
			p.Hedge = 0.2
			tr := &retrip.Transport{Base: base, Policy: p, Metrics: &retrip.Metrics{}}
			for range 20 {
				assert.Equal(t, "ok", getText(t, tr, s.URL))
			}
			f(t, s, tr)
			tr.CloseIdleConnections()
		})
	}
}

// getText returns the body at a URL.
func getText(t *testing.T, rt http.RoundTripper, url string) string {
	t.Helper()
	resp := do(t, rt, play.Must(http.NewRequestWithContext(t.Context(), "GET", url, nil)))
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(data)
}

// A request over a connection that has frozen is answered over another one. Over HTTP/2, all
// requests to a host would share the frozen one, so later ones use the other one at once,
// whatever their method. That they do without attempt timeouts.
//
//retrip:promise P21
func TestHedge_Frozen(t *testing.T) {
	eachProtocol(t, retrip.Policy{}, answersOK, func(t *testing.T, s *memhttp.Server, tr *retrip.Transport) {
		for round := range 5 {
			s.Listener.Freeze()
			for i := range 100 {
				began := time.Now()
				if i%3 == 2 {
					drop(t, tr, play.Must(http.NewRequestWithContext(t.Context(), "POST", s.URL, strings.NewReader("body"))))
					synctest.Wait() // net/http may read the rest and keep the connection
				} else {
					assert.Equal(t, "ok", getText(t, tr, s.URL))
				}
				most := usual
				if i == 0 {
					most += usual + 50*time.Millisecond // the delay and the second attempt
				}
				require.LessOrEqual(t, time.Since(began), most, "round %d, request %d", round, i)
			}
		}
		m := counts(t, tr.Metrics)
		if s.HTTP2() {
			assert.EqualValues(t, 5, m["hedges_total won"])
			assert.LessOrEqual(t, float64(s.Listener.Dials()), 1+m["hedges_total"])
		}
		assert.Zero(t, m["retries_total"])
	})
}

// Where there is no hedge, two callers that give up are evidence of a frozen connection.
func TestHedge_HungUntilTheCallerLeft(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP2, memhttp.H2C} {
		bubble(t, proto.String(), func(t *testing.T) {
			s := memhttp.NewServer(t, proto, http.HandlerFunc(answersOK))
			tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{Hedge: 0.001}}
			defer tr.CloseIdleConnections()
			for range 20 {
				getText(t, tr, s.URL)
			}
			s.Listener.Freeze()
			for i := range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				began := time.Now()
				err := try(tr, play.Must(http.NewRequestWithContext(ctx, "GET", s.URL, nil)))
				cancel()
				require.Equal(t, i < 2, err != nil, i)
				require.True(t, i < 2 || time.Since(began) <= 2*usual, i)
			}
		})
	}
}

// A base that was only slow gets its requests back from a hedge beside an attempt at the spare.
func TestHedge_AvoidedBaseReturns(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP2, memhttp.H2C} {
		bubble(t, proto.String(), func(t *testing.T) {
			var stall sync.Map
			var all atomic.Int32
			s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if _, ok := stall.LoadAndDelete(r.RemoteAddr); ok {
					time.Sleep(time.Minute)
				}
				if time.Sleep(usual / 10); all.Add(1) <= 20 {
					time.Sleep(usual) // later answers are never late
				}
				_, _ = io.WriteString(w, r.RemoteAddr)
			}))
			tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{Hedge: 0.2}}
			defer tr.CloseIdleConnections()
			at := func(times int) (conn string) {
				for range times {
					conn = getText(t, tr, s.URL)
				}
				return conn
			}
			base := at(20)
			stall.Store(base, true)
			spare := at(1)
			assert.NotEqual(t, base, spare, "the hedge")
			assert.Equal(t, spare, at(20), "and later requests")
			// Another request proves that the spare works.
			stall.Store(spare, true)
			var wg sync.WaitGroup
			wg.Go(func() { at(1) })
			time.Sleep(usual / 20)
			wg.Go(func() { at(1) })
			wg.Wait()
			assert.Equal(t, base, at(1))
		})
	}
}

// The winner's body lives while the loser's attempt dies, however slowly it is read.
//
//retrip:promise P21
func TestHedge_SlowReader(t *testing.T) {
	var n atomic.Int32
	size := 1 << 20
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/large" {
			answersOK(w, r)
			return
		}
		if n.Add(1)%2 == 1 {
			time.Sleep(5 * usual)
		}
		for range size >> 10 {
			if _, err := w.Write(make([]byte, 1<<10)); err != nil {
				return
			}
		}
	}
	for _, policy := range []retrip.Policy{{}, {WholeBody: 4 << 10}, {AttemptTimeout: 10 * usual}, {BodyIdleTimeout: time.Minute}, {Resume: time.Minute}, {Deadline: time.Second},
		{WholeBody: 4 << 20, AttemptTimeout: time.Second, BodyIdleTimeout: time.Second, Resume: time.Minute}} {
		n.Store(0)
		eachProtocol(t, policy, answer, func(t *testing.T, s *memhttp.Server, tr *retrip.Transport) {
			req := play.Must(http.NewRequestWithContext(t.Context(), "GET", s.URL+"/large", nil))
			began := time.Now()
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Less(t, time.Since(began), 3*usual)
			assert.Same(t, req, resp.Request)
			read, buf := 0, make([]byte, 32<<10)
			for err == nil {
				var k int
				k, err = resp.Body.Read(buf)
				read += k
				time.Sleep(100 * time.Millisecond)
			}
			assert.Equal(t, io.EOF, err)
			assert.Equal(t, size, read)
			assert.NoError(t, resp.Body.Close())
			assert.EqualValues(t, 1, play.Gather(t, tr.Metrics)["default"]["hedges_total won"])
		})
	}
}
