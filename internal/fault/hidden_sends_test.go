// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// incomparable is a connection that can't be compared.
type incomparable struct {
	net.Conn
	_ []int
}

// What a base reports about its connections, and how many sends that makes: new
// connections use up what is left of ten.
//
//retrip:promise P18
func TestHiddenSends_Counts(t *testing.T) {
	a, b, c := new(net.TCPConn), new(net.TCPConn), new(net.TCPConn)
	fresh := func(c net.Conn) httptrace.GotConnInfo { return httptrace.GotConnInfo{Conn: c} }
	reused := func(c net.Conn) httptrace.GotConnInfo { return httptrace.GotConnInfo{Conn: c, Reused: true} }
	for _, tt := range []struct {
		name  string
		count int
		sends []httptrace.GotConnInfo
	}{
		{"fresh ones", 3, []httptrace.GotConnInfo{fresh(a), fresh(b), fresh(c)}},
		{"one, fresh", 1, []httptrace.GotConnInfo{fresh(a)}},
		{"fresh ones after stale ones", 2, []httptrace.GotConnInfo{reused(a), reused(b), fresh(c), fresh(c)}},
		{"the same one again, as over HTTP/2", 3, []httptrace.GotConnInfo{reused(a), reused(a), reused(a)}},
		{"the same ones by turns", 4, []httptrace.GotConnInfo{reused(a), reused(b), reused(a), reused(b)}},
		{"a fresh one, again and again", 3, []httptrace.GotConnInfo{fresh(a), reused(a), reused(a)}},
		{"none named", 3, []httptrace.GotConnInfo{reused(nil), reused(nil), reused(nil)}},
		{"ones that can't be compared", 3, []httptrace.GotConnInfo{reused(incomparable{Conn: a}), reused(incomparable{Conn: b}), reused(incomparable{Conn: c})}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			sent := 0
			base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				for _, info := range append(tt.sends, slices.Repeat([]httptrace.GotConnInfo{fresh(c)}, 10)...) {
					httptrace.ContextClientTrace(r.Context()).GotConn(info)
					if r.Context().Err() != nil {
						return nil, r.Context().Err()
					}
					sent++
				}
				return nil, io.EOF
			})
			tr := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Hour, MaxAttempts: 1}}
			_, err := tr.RoundTrip(play.Request(t, "GET", nil))
			assert.ErrorContains(t, err, "more than 10 times")
			assert.Equal(t, len(tt.sends)+10-tt.count, sent)
		})
	}
}

// Reaching the bound costs an attempt, a wait and a token, like any other
// failure. The whole request may be sent 10 × MaxAttempts times.
//
//retrip:promise P18
func TestHiddenSends_AreAFailedAttempt(t *testing.T) {
	for _, tt := range []struct {
		method   string
		timeout  time.Duration
		attempts int
	}{{"GET", 0, 4}, {"GET", time.Hour, 4}, {"POST", 0, 1}, {"POST", time.Hour, 1}} {
		play.Bubble(t, fmt.Sprint(tt.method, ", timeout ", tt.timeout), func(t *testing.T) {
			var seen atomic.Int32
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, _ uint32) {
				seen.Add(1)
				goesAway(w)
			})
			metrics := &retrip.Metrics{}
			tr := &retrip.Transport{Base: base, Metrics: metrics, Policy: retrip.Policy{AttemptTimeout: tt.timeout, Backoff: play.Steady.Backoff}}
			req, done := traced(t, play.MustRequest(t, tt.method, "http://example.com/", strings.NewReader("x")))
			start := time.Now()
			_, err := tr.RoundTrip(req)
			assert.ErrorContains(t, err, "more than 10 times")
			assert.NotErrorIs(t, err, context.Canceled)
			assert.Equal(t, retrip.ReasonHiddenSends, done.Reason)
			assert.Equal(t, tt.attempts, done.Attempt)
			assert.Equal(t, 10+1, done.Sends)
			assert.LessOrEqual(t, seen.Load(), int32(10*tt.attempts))
			assert.Equal(t, time.Duration(tt.attempts-1)*time.Second, time.Since(start))
			assert.Equal(t, time.Since(start), done.Elapsed)
			assert.Equal(t, 5-min(0.5, float64(tt.attempts-1)), play.Must(tr.HostState("example.com:80")).Tokens)
			if retries := "retries_total{default,hidden_sends} 3"; tt.attempts > 1 {
				assert.Contains(t, play.Counted(t, metrics), retries)
			}
		})
	}
}
