// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
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

	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// leg is what a hedgeBase does with one attempt: after a time it returns a status, an
// error or a panic, unless the attempt ends before.
type leg struct {
	after  time.Duration
	status int
	err    error
	panics any
	header http.Header
	body   string
	deaf   bool // doesn't notice the end of the attempt
}

// hedgeBase makes the attempts of each request as its script says. It counts the response
// bodies that are open.
type hedgeBase struct {
	mu     sync.Mutex
	legs   []leg // of the next request; empty: usual
	seen   []*http.Request
	began  []time.Time
	ended  []time.Time
	causes []error
	open   atomic.Int32
}

// usual is how long an answer takes as a rule.
const usual = 20 * time.Millisecond

func (b *hedgeBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	l := leg{after: usual, status: 200}
	if len(b.legs) > 0 {
		l, b.legs = b.legs[0], b.legs[1:]
	}
	n := len(b.seen)
	b.seen, b.began, b.ended, b.causes = append(b.seen, req), append(b.began, time.Now()), append(b.ended, time.Time{}), append(b.causes, nil)
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.ended[n], b.causes[n] = time.Now(), context.Cause(req.Context())
	}()
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	done := req.Context().Done()
	if l.deaf {
		done = nil
	}
	select {
	case <-time.After(l.after):
	case <-done:
		return nil, req.Context().Err()
	}
	switch {
	case l.panics != nil:
		panic(l.panics)
	case l.err != nil:
		return nil, l.err
	}
	b.open.Add(1)
	header := l.header
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: l.status, Header: header, Request: req, ContentLength: -1,
		Body: &openBody{Reader: strings.NewReader(l.body), ctx: req.Context(), open: &b.open}}, nil
}

// openBody is a body that counts as open until it is closed, and that ends with its
// request, as those of net/http do.
type openBody struct {
	io.Reader
	ctx  context.Context
	open *atomic.Int32
	once sync.Once
}

func (b *openBody) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

func (b *openBody) Close() error {
	b.once.Do(func() { b.open.Add(-1) })
	return nil
}

// hedging returns a Transport that has learned that answers take the usual time, and
// that has two hedges saved up.
func hedging(t *testing.T, p retrip.Policy) (*retrip.Transport, *hedgeBase) {
	t.Helper()
	base := &hedgeBase{}
	p.Hedge = 0.2
	tr := &retrip.Transport{Base: base, Policy: p, Metrics: retrip.NewMetrics()}
	warm(t, tr)
	base.seen, base.began, base.ended, base.causes = nil, nil, nil, nil
	return tr, base
}

func warm(t *testing.T, tr *retrip.Transport) {
	t.Helper()
	for range 20 {
		resp, err := tr.RoundTrip(get(t.Context()))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
}

func get(ctx context.Context) *http.Request {
	req, err := http.NewRequestWithContext(ctx, "GET", "http://example.com/", nil)
	if err != nil {
		panic(err)
	}
	return req
}

const never = time.Hour

// The first good answer wins, whichever attempt it comes from, and the other attempt is
// canceled at that instant. A failure never beats a running attempt.
//
//retrip:promise P21
func TestHedge_Winner(t *testing.T) {
	reset := errors.New("reset")
	for name, tt := range map[string]struct {
		legs   []leg
		status int
		took   time.Duration // until RoundTrip returns
		result string
	}{
		"second is faster":            {[]leg{{after: never}, {after: usual, status: 200}}, 200, 2 * usual, "won"},
		"first is faster":             {[]leg{{after: 2 * usual, status: 200}, {after: never}}, 200, 2 * usual, "lost"},
		"503 at once":                 {[]leg{{after: 10 * usual, status: 200}, {status: 503}}, 200, 10 * usual, "failed"},
		"429 at once":                 {[]leg{{after: 10 * usual, status: 200}, {status: 429}}, 200, 10 * usual, "failed"},
		"error at once":               {[]leg{{after: 10 * usual, status: 200}, {err: reset}}, 200, 10 * usual, "failed"},
		"503 late":                    {[]leg{{after: 2 * usual, status: 503}, {after: 10 * usual, status: 200}}, 200, 11 * usual, "won"},
		"error late":                  {[]leg{{after: 2 * usual, err: reset}, {after: 10 * usual, status: 200}}, 200, 11 * usual, "won"},
		"404 is an answer":            {[]leg{{after: never}, {after: usual, status: 404}}, 404, 2 * usual, "won"},
		"504 of one, 404 of other":    {[]leg{{after: 3 * usual, status: 404}, {status: 504}}, 404, 3 * usual, "failed"},
		"the first ignores its end":   {[]leg{{after: 5 * usual, status: 200, deaf: true}, {after: usual, status: 200}}, 200, 5 * usual, "won"},
		"the second ignores its end":  {[]leg{{after: 2 * usual, status: 200}, {after: 5 * usual, status: 200, deaf: true}}, 200, 2 * usual, "lost"},
		"both at the same instant":    {[]leg{{after: 2 * usual, status: 200}, {after: usual, status: 200}}, 200, 2 * usual, ""},
		"the first at its delay":      {[]leg{{after: usual, status: 200}}, 200, usual, ""},
		"the first before its delay":  {[]leg{{after: usual / 2, status: 200}}, 200, usual / 2, "none"},
		"the first fails before that": {[]leg{{after: usual / 2, status: 503}, {after: 0, status: 200}}, 200, usual / 2, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr, base := hedging(t, retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}})
				base.legs = tt.legs
				began := time.Now()
				req := get(t.Context())
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				took := time.Since(began)
				assert.Equal(t, tt.status, resp.StatusCode)
				// The delay moves while nothing happens.
				assert.InDelta(t, tt.took.Seconds(), took.Seconds(), (usual / 3).Seconds())
				assert.Same(t, req, resp.Request)
				_, err = io.ReadAll(resp.Body)
				assert.NoError(t, err, "the winner's body lives")
				assert.NoError(t, resp.Body.Close())
				returned := began.Add(took)
				synctest.Wait()
				for i, l := range tt.legs {
					if i < len(base.ended) && !l.deaf {
						assert.LessOrEqual(t, base.ended[i].Sub(returned), time.Duration(0), "attempt %d has ended", i)
					}
				}
				time.Sleep(10 * usual)
				assert.Zero(t, base.open.Load())
				m := play.Gather(t, tr.Metrics)["default"]
				if tt.result == "none" {
					assert.Zero(t, m["hedges_total"])
				} else if tt.result != "" {
					assert.EqualValues(t, 1, m["hedges_total "+tt.result])
					assert.EqualValues(t, 1, m["hedges_total"])
				}
			})
		})
	}
}

var _ = testenv.Race
