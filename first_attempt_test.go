// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/testenv"
)

// plain and bounded make the first attempt without an exchange. Nobody can tell:
// random requests to random bases, under random policies, look the same as
// through exchange alone.
func TestTransport_FirstAttemptLikeExchange(t *testing.T) {
	bounded := 0
	for seed := range uint64(testenv.Size(2500, 20_000)) {
		play := func(path func(*Transport, *http.Request) (*http.Response, error)) (run []string) {
			synctest.Test(t, func(t *testing.T) { run = playFirst(t, newScene(t, seed), path) })
			return run
		}
		want, got := play((*Transport).exchangeOnly), play((*Transport).RoundTrip)
		// Decisions at a gate draw, so a scene may have more than one course.
		for again := 0; again < 20 && newScene(t, seed).drawn && !slices.Equal(want, got); again++ {
			want, got = play((*Transport).exchangeOnly), play((*Transport).RoundTrip)
		}
		if !slices.Equal(want, got) {
			t.Errorf("seed %d, policy %+v%s", seed, newScene(t, seed).transport.Policy, firstDifference(want, got))
		}
		if r, err := newScene(t, seed).transport.Policy.Rules(); err == nil && r.derives && !r.apart {
			bounded++
		}
	}
	assert.Greater(t, bounded, 1000)
}

// firstDifference returns the lines around the first one that differs.
func firstDifference(want, got []string) string {
	n := 0
	for n < min(len(want), len(got)) && want[n] == got[n] {
		n++
	}
	lines := func(list []string) string { return "\n\t" + strings.Join(list[n:min(n+4, len(list))], "\n\t") }
	return "\nboth:\n\t" + strings.Join(want[max(0, n-6):n], "\n\t") + "\nexchange:" + lines(want) + "\nRoundTrip:" + lines(got)
}

// exchangeOnly is RoundTrip without plain and bounded.
func (t *Transport) exchangeOnly(req *http.Request) (*http.Response, error) {
	s, o := t.start(), overrideOf(req.Context())
	r := s.find(req.URL)
	if o != nil && o.policy != nil {
		r = must(o.rules(r))
	}
	return t.exchange(s, r, req, replay.KindOf(req), o)
}

// firstRun records what happens in a scene.
type firstRun struct {
	scene *scene
	send  func(*http.Request) (*http.Response, error)
	start time.Time

	mu    sync.Mutex
	lines []string
	other []string // in no order
	paid  float64  // tokens paid into the fleet's account, which may come together
}

// logOther is log for what other goroutines do.
func (u *firstRun) logOther(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.other = append(u.other, u.at()+fmt.Sprintf(format, args...))
}

func (u *firstRun) log(format string, args ...any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.lines = append(u.lines, u.at()+fmt.Sprintf(format, args...))
}

// at returns the time since the start, unless waits in the scene are drawn.
func (u *firstRun) at() string {
	if u.scene.drawn {
		return ""
	}
	return fmt.Sprint(time.Since(u.start), " ")
}

// Write implements io.Writer, for log records.
func (u *firstRun) Write(p []byte) (int, error) {
	u.log("log %s", bytes.TrimSpace(p))
	return len(p), nil
}

// playFirst makes the requests of c by send and returns everything that can be
// observed.
func playFirst(t *testing.T, c *scene, send func(*Transport, *http.Request) (*http.Response, error)) []string {
	u := &firstRun{scene: c, start: time.Now()}
	tr := c.transport
	u.send = func(req *http.Request) (*http.Response, error) { return send(tr, req) }
	tr.Base = roundTripperFunc(func(req *http.Request) (*http.Response, error) { return c.next().play(u, req) })
	if c.logs {
		tr.Logger = slog.New(slog.NewTextHandler(u, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == "open_for" || c.drawn && a.Value.Kind() == slog.KindDuration {
				return slog.Attr{}
			}
			return a
		}}))
	}
	if c.fleet {
		tr.Fleet = NewFleet(storeFunc(func(_ context.Context, _ string, tokens, _ float64) (float64, error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.paid += tokens
			return c.level, nil
		}))
	}
	for _, a := range c.asks {
		a.ask(t, u)
		for _, s := range tr.HostStates() {
			s.OpenFor = 0 // drawn
			if c.drawn {
				s.PausedFor, s.FailedAgo = 0, 0
			}
			u.log("state %+v", s)
		}
	}
	time.Sleep(time.Hour)
	if c.fleet {
		require.NoError(t, tr.Fleet.Close())
	}
	synctest.Wait()
	u.log("paid %.1f", u.paid)
	u.log("left %d", tr.hosts.Entries.Load())
	overrides := slices.ContainsFunc(c.asks, func(a *ask) bool { return a.override != nil })
	if r, err := tr.Policy.Rules(); err == nil && r.derives && !overrides {
		// plain doesn't call Idempotent before it must.
		u.log("judged %d", c.judged)
	}
	slices.Sort(u.other)
	return slices.Concat(u.lines, u.other, seriesOf(t, tr.Metrics, c.drawn))
}

// ask makes one request.
func (a *ask) ask(t *testing.T, u *firstRun) {
	req, end := a.request(t, u)
	// A base may end its goroutine.
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		returned := false
		defer func() {
			if p := recover(); p != nil {
				u.log("panic %v", p)
			} else if !returned {
				u.log("exit")
			}
		}()
		resp, err := u.send(req)
		returned = true
		u.log("returned %T %v, timeout %v", err, err, err != nil && fault.Timeout(fault.Usable(err)))
		if resp == nil {
			return
		}
		u.log("response %d %v, own %v, outlives %v", resp.StatusCode, resp.Header, resp.Request == req, resp.Request == nil || resp.Request.Context().Err() == req.Context().Err())
		if resp.Body == nil {
			return
		}
		_, writes := resp.Body.(io.Writer)
		u.log("body writes %v", writes)
		time.Sleep(a.pause)
		if a.reads {
			b, err := io.ReadAll(resp.Body)
			u.log("read %d %v", len(b), err)
		}
		u.log("closed %v", resp.Body.Close())
	}()
	<-ended
	synctest.Wait()
	end()
	synctest.Wait()
	time.Sleep(time.Second)
}

// play makes an attempt.
func (s *act) play(u *firstRun, req *http.Request) (*http.Response, error) {
	own := req == u.scene.sent
	u.log("attempt, own request %v, header %v, deadline %v", own, keyless(req.Header), deadlineOf(req.Context()))
	if s.keeps && req.Context().Done() != nil {
		// A base may keep the context.
		context.AfterFunc(req.Context(), func() { u.logOther("ended %v", context.Cause(req.Context())) })
	}
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		u.log("sent %q %v %v", b, err, req.Body.Close())
	}
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.GotConn != nil {
		if trace.GetConn != nil {
			trace.GetConn("example.com:80")
		}
		for range s.sends {
			trace.GotConn(httptrace.GotConnInfo{})
		}
	}
	if s.beside != "" {
		time.Sleep(time.Microsecond) // so that the limits of the two differ
		u.beside(s.beside)
	}
	if err := s.wait(req); err != nil {
		return nil, err
	}
	switch s.how {
	case "panics":
		panic("base")
	case "exits":
		runtime.Goexit()
	case "errs":
		return nil, s.err
	case "both":
		return s.response(u, req), s.err
	case "neither":
		return nil, nil
	}
	return s.response(u, req), nil
}

// wait waits as long as the attempt takes. It returns why the caller has gone, if
// the base obeys.
func (s *act) wait(req *http.Request) error {
	ctx := req.Context()
	timer := time.NewTimer(s.delay)
	defer timer.Stop()
	if !s.obeys {
		<-timer.C
		return nil
	}
	select {
	case <-timer.C:
	case <-ctx.Done():
	case <-legacyCancel(req):
	}
	// More than one may be true by now.
	switch {
	case ctx.Done() == nil || ctx.Err() == nil:
	case s.causes:
		return context.Cause(ctx)
	default:
		return ctx.Err()
	}
	select {
	case <-legacyCancel(req):
		return fault.ErrRequestCanceled
	default:
		return nil
	}
}

// beside makes another request, which may change the state of its host and of a
// shared budget.
func (u *firstRun) beside(host string) {
	c := u.scene
	own := c.sent
	c.sent = must(http.NewRequest(http.MethodPut, "http://"+host, nil))
	resp, err := u.send(c.sent)
	u.log("beside %v %v", resp != nil, err)
	body.Dismiss(resp)
	c.sent = own
}

func deadlineOf(ctx context.Context) string {
	at, ok := ctx.Deadline()
	return fmt.Sprint(at.UnixNano(), ok)
}

// keyless returns h without a generated key, which is random.
func keyless(h http.Header) http.Header {
	h = h.Clone()
	if h["Idempotency-Key"] != nil {
		h["Idempotency-Key"] = []string{"some"}
	}
	return h
}

// seriesOf returns all series of m. If waits are drawn, it leaves their sums
// out.
func seriesOf(t *testing.T, m *Metrics, drawn bool) (lines []string) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(m)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, s := range f.GetMetric() {
			value := fmt.Sprint(s.GetCounter().GetValue() + s.GetGauge().GetValue())
			if h := s.GetHistogram(); h != nil {
				value = fmt.Sprint(h.GetSampleCount())
				if !drawn {
					value += fmt.Sprint(" ", h.GetSampleSum())
				}
			}
			var name strings.Builder
			name.WriteString(f.GetName())
			for _, l := range s.GetLabel() {
				name.WriteString(" " + l.GetValue())
			}
			lines = append(lines, name.String()+" "+value)
		}
	}
	return lines
}

// endsAfter returns an empty reader whose end takes a while.
func endsAfter(d time.Duration) io.Reader {
	return testenv.Reader(func([]byte) (int, error) { time.Sleep(d); return 0, io.EOF })
}
