// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// notes records the arguments of hooks, one word each.
type notes struct{ lines []string }

func (n *notes) trace() *retrip.Trace {
	note := func(hook string) func(retrip.Event) {
		return func(e retrip.Event) {
			errText := ""
			if e.Err != nil {
				errText = e.Err.Error()
			}
			n.lines = append(n.lines, strings.Join(strings.Fields(fmt.Sprint(hook, " #", e.Attempt, " ", e.StatusCode, " ", errText, " ", e.Reason,
				" wait=", e.Wait, " server=", e.FromServer, " at=", e.Elapsed, " ", e.Policy)), " "))
		}
	}
	return &retrip.Trace{Attempt: note("attempt"), Retry: note("retry"), GiveUp: note("giveup"), Done: note("done")}
}

// The hooks of a request have the right numbers. The stories show their order.
//
//retrip:promise P19
func TestTrace_Order(t *testing.T) {
	p := play.With(func(p *retrip.Policy) { p.MaxAttempts = 3; p.AttemptTimeout = 2 * time.Second })
	for _, tt := range []struct {
		name  string
		steps []play.Step
		want  []string
	}{
		{"used up", []play.Step{play.Reply(429), play.Hang, play.Reply(500)}, []string{
			"attempt #1 0 wait=0s server=false at=0s default",
			"retry #1 429 throttled wait=1s server=false at=0s default",
			"attempt #2 0 wait=0s server=false at=1s default",
			"retry #2 0 retrip: no response within Policy.AttemptTimeout timeout wait=1s server=false at=3s default",
			"attempt #3 0 wait=0s server=false at=4s default",
			"giveup #3 500 max_attempts wait=0s server=false at=4s default",
			"done #3 500 max_attempts wait=0s server=false at=4s default",
		}},
		{"too long", []play.Step{play.Reply(503, "Retry-After: 60")}, []string{
			"attempt #1 0 wait=0s server=false at=0s default",
			"giveup #1 503 wait_too_long wait=1m0s server=true at=0s default",
			"done #1 503 wait_too_long wait=1m0s server=true at=0s default",
		}},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			own, outer, inner := &notes{}, &notes{}, &notes{}
			tr := &retrip.Transport{Base: play.Base(tt.steps...), Policy: p, Trace: own.trace()}
			req := play.Request(t, "GET", nil)
			ctx := retrip.WithTrace(retrip.WithTrace(req.Context(), outer.trace()), inner.trace())
			ctx = retrip.WithPolicy(ctx, retrip.Policy{})
			play.Finish(t, do(t, tr, req.WithContext(ctx)))
			assert.Equal(t, tt.want, own.lines)
			assert.Equal(t, tt.want, outer.lines)
			assert.Equal(t, tt.want, inner.lines)
		})
	}
}

// If the caller goes in the wait before a retry, the hooks show the outcome of
// the last attempt, although its response has been discarded.
func TestTrace_CallerGoesInTheWait(t *testing.T) {
	for name, tt := range map[string]struct {
		steps  []play.Step
		status int
	}{
		"after a response":              {[]play.Step{play.Reply(503)}, 503},
		"after a response and an error": {[]play.Step{play.Reply(503), play.Err(errors.New("reset"))}, 0},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			var ends []retrip.Event
			note := func(e retrip.Event) { ends = append(ends, e) }
			p := play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Minute })
			tr := &retrip.Transport{Base: play.Base(tt.steps...), Policy: p, Trace: &retrip.Trace{GiveUp: note, Done: note}}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Duration(len(tt.steps))*time.Second-time.Millisecond, cancel)
			_, err := tr.RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
			require.ErrorIs(t, err, context.Canceled)
			e := play.AsError(t, err)
			assert.Equal(t, 503, e.StatusCode)
			require.Len(t, ends, 2)
			for _, end := range ends {
				assert.Equal(t, tt.status, end.StatusCode)
				assert.Nil(t, end.Header)
				assert.ErrorIs(t, end.Err, context.Canceled)
			}
		})
	}
}

// A hook that waits, such as for a limiter, is no part of the attempt, and moves no deadline.
//
//retrip:promise P10 P11
func TestTrace_HookWaits(t *testing.T) {
	for name, tt := range map[string]struct {
		step     play.Step
		attempts int
		took     time.Duration
	}{"hang": {play.Hang, 1, 12 * time.Second}, "500": {play.Reply(500), 2, 10 * time.Second}} {
		bubble(t, name, func(t *testing.T) {
			base := play.Base(tt.step)
			tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Deadline: 12 * time.Second, MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
			tr.Trace = &retrip.Trace{Attempt: func(e retrip.Event) {
				if e.Attempt == 1 {
					time.Sleep(10 * time.Second)
				}
			}}
			start := time.Now()
			getFrom(t, tr, "http://example.com/")
			assert.Equal(t, tt.took, time.Since(start))
			assert.Equal(t, tt.attempts, base.Attempts())
		})
	}
}

func TestTrace_FromServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got retrip.Event
		tr := &retrip.Transport{Base: play.Base(play.Reply(429, "Retry-After: 4", "X: y"), play.Reply(200)), Trace: &retrip.Trace{Retry: func(e retrip.Event) { got = e }}}
		req := play.Request(t, "GET", nil)
		drop(t, tr, req)
		assert.GreaterOrEqual(t, got.Wait, 4*time.Second)
		assert.Equal(t, "y", got.Header.Get("X"))
		assert.Same(t, req, got.Request)
	})
}

// The order of the Transport's, outer and inner hooks. Hooks may be missing.
func TestTrace_Enclosing(t *testing.T) {
	var order []string
	done := func(name string) *retrip.Trace {
		return &retrip.Trace{Done: func(retrip.Event) { order = append(order, name) }}
	}
	tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Trace: done("own")}
	req := play.Request(t, "GET", nil)
	ctx := retrip.WithTrace(req.Context(), done("outer"))
	ctx = retrip.WithTrace(ctx, nil)
	ctx = retrip.WithTrace(ctx, &retrip.Trace{})
	play.Finish(t, do(t, tr, req.WithContext(retrip.WithTrace(ctx, done("inner")))))
	assert.Equal(t, []string{"own", "outer", "inner"}, order)
}

const secretURL = "http://user:hunter2@example.com/path?token=s3cret#frag"

// The log contains no userinfo and no query of a URL.
//
//retrip:promise P19
func TestLogger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		tr := &retrip.Transport{
			Base:   play.Base(play.Reply(503), play.Err(&url.Error{Op: "Get", URL: secretURL, Err: errors.New("reset")})),
			Policy: play.With(func(p *retrip.Policy) { p.MaxAttempts = 3 }),
			Logger: slog.New(slog.NewJSONHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
		_, err := tr.RoundTrip(play.MustRequest(t, "", secretURL, nil))
		require.Error(t, err)
		var records []map[string]any
		for line := range strings.Lines(log.String()) {
			var r map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &r))
			delete(r, "time")
			records = append(records, r)
		}
		common := func(level, msg string, attempt float64, reason string, more map[string]any) map[string]any {
			r := map[string]any{"level": level, "msg": msg, "method": "GET", "url": "http://example.com/path", "policy": "default", "attempt": attempt, "reason": reason}
			maps.Copy(r, more)
			return r
		}
		second := float64(time.Second)
		text := `Get "http://example.com/path": reset`
		assert.Equal(t, []map[string]any{
			common("DEBUG", "retrip: retry", 1, "server_error", map[string]any{"status": 503.0, "wait": second}),
			common("DEBUG", "retrip: retry", 2, "error", map[string]any{"error": text, "wait": second}),
			common("INFO", "retrip: give up", 3, "max_attempts", map[string]any{"error": text}),
		}, records)
	})
}

// Neither the log nor a HostState nor an error shows the userinfo of what stands in the place
// of a host, or takes two lines for it.
//
//retrip:promise P19
func TestNames_WithoutSecrets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []string
		collect := func(_ []string, a slog.Attr) slog.Attr {
			said = append(said, a.Value.String())
			return a
		}
		tr := &retrip.Transport{Base: play.Base(play.Reply(503)), Policy: retrip.Policy{Breaker: retrip.Breaker{MinVolume: 1}},
			Logger: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: collect}))}
		byHand := &http.Request{Method: "GET", URL: &url.URL{Scheme: "http", Host: "user:hunter2@two\nlines.example"}, Header: http.Header{}}
		for range 3 {
			try(tr, byHand)
		}
		require.Contains(t, said, `…@two\nlines.example`)
		said = append(said, fmt.Sprint(tr.HostStates()))
		hosts := map[string]retrip.Policy{"user:hunter2@example.com": {}}
		_, _, loading := retrip.LoadPolicies(strings.NewReader(`{"hosts": {"user:hunter2@example.com": {}}}`))
		for _, err := range []error{loading, tr.SetPolicies(retrip.Policy{}, hosts), (&retrip.Transport{Hosts: hosts}).Validate()} {
			require.ErrorContains(t, err, "@example.com")
			said = append(said, err.Error())
		}
		for _, text := range said {
			assert.NotContains(t, text, "hunter2")
			assert.NotContains(t, text, "\n")
		}
	})
}

// hostLog returns the records about hosts, such as "WARN retries_stopped".
func hostLog(text string) []string {
	var said []string
	for _, match := range regexp.MustCompile(`level=(\S+) msg="retrip: host" host=example.com:80 change=(\S+)`).FindAllStringSubmatch(text, -1) {
		said = append(said, match[1]+" "+match[2])
	}
	return said
}

// hostTold are a Transport whose log and Host hook are recorded, and its Base.
type hostTold struct {
	t *testing.T
	*retrip.Transport
	step   play.Step // of all attempts
	log    strings.Builder
	states []retrip.HostState
}

func tellHost(t *testing.T, p retrip.Policy) *hostTold {
	h := &hostTold{t: t}
	h.Transport = &retrip.Transport{Policy: p, Logger: slog.New(slog.NewTextHandler(&h.log, nil)),
		Base:  testenv.RoundTripper(func(r *http.Request) (*http.Response, error) { return h.step(r) }),
		Trace: &retrip.Trace{Host: func(s retrip.HostState) { h.states = append(h.states, s) }}}
	return h
}

// call makes requests, one after the other, whose attempts all have the same outcome.
func (h *hostTold) call(times int, step play.Step, pause time.Duration) {
	h.step = step
	for range times {
		try(h, play.Request(h.t, "GET", nil))
		time.Sleep(pause)
	}
}

// A budget that runs out is logged once, whatever the number of requests, and
// once more when it is full again.
func TestTrace_HostBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := tellHost(t, retrip.Policy{})
		h.call(50, play.Reply(503), 0)
		assert.Equal(t, []string{"WARN retries_stopped"}, hostLog(h.log.String()))
		assert.Contains(t, h.log.String(), "tokens=3.5 failed_retries=3 last_give_up=retries_failing last_failure=server_error last_status=503\n")
		require.Len(t, h.states, 1)
		assert.Equal(t, 3, h.states[0].FailedRetries)
		h.call(1, play.Reply(200), 0)
		h.call(5, play.Reply(503), 0)
		assert.Len(t, h.states, 1, "it wasn't full")
		h.call(100, play.Reply(200), 0)
		assert.Equal(t, []string{"WARN retries_stopped", "INFO budget_full"}, hostLog(h.log.String()))
		require.Len(t, h.states, 2)
		assert.Equal(t, h.states[1].Size, h.states[1].Tokens)
		h.call(50, play.Reply(503), 0)
		assert.Len(t, h.states, 3)
	})
}

// A route whose retries wait for successes is named, once.
func TestTrace_HostRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := tellHost(t, retrip.Policy{})
		call := func(path string, status int) {
			h.step = play.Reply(status)
			req := play.Request(t, "GET", nil)
			req.URL.Path = path
			drop(t, h, req)
		}
		stopped := func() string { return play.Must(h.HostState("example.com:80")).StoppedRoutes }
		for range 50 {
			call("/v2/search/42", 503)
			for range 10 {
				call("/v2/orders/42", 200)
			}
		}
		assert.Equal(t, []string{"WARN retries_stopped"}, hostLog(h.log.String()))
		assert.Contains(t, h.log.String(), `stopped_routes="GET /search"`)
		for range 2 {
			assert.Equal(t, "GET /search", stopped())
			call("/v2/search/42", 200)
		}
		assert.Empty(t, stopped())
		for range 253 {
			require.Len(t, play.Held(h.Transport), 1)
			call("/v2/search/42", 200)
		}
		assert.Empty(t, play.Held(h.Transport))
	})
}

// The last token may come back from a retry that is never sent.
func TestTrace_HostBudgetFullByReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := tellHost(t, play.With(func(p *retrip.Policy) { p.Budget = 1; p.MaxAttempts = 2 }))
		h.step = play.Base(play.Err(os.ErrDeadlineExceeded), play.Reply(503)).RoundTrip
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(500*time.Millisecond, cancel)
		time.AfterFunc(100*time.Millisecond, func() {
			assert.NoError(t, try(h, play.Request(t, "GET", nil)), "the 503")
		})
		require.ErrorIs(t, try(h, play.Request(t, "GET", nil).WithContext(ctx)), context.Canceled)
		assert.Equal(t, []string{"WARN retries_stopped", "INFO budget_full"}, hostLog(h.log.String()))
	})
}

// Outages of a host, one behind a breaker and one with pauses, under hundreds
// of requests: what the log says at level Info about the host and about refused
// requests.
func TestTrace_HostOutageIsSaidOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := tellHost(t, retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 5}})
		h.call(1800, play.Reply(503), time.Second/30)
		assert.Equal(t, []string{"WARN breaker_open"}, hostLog(h.log.String()))
		assert.Less(t, strings.Count(h.log.String(), "\n"), 40, "a minute of 1800 requests")
		time.Sleep(10 * time.Second)
		h.call(30, play.Reply(200), time.Second)
		assert.Equal(t, []string{"WARN breaker_open", "INFO breaker_closed"}, hostLog(h.log.String()))

		h = tellHost(t, retrip.Policy{MaxAttempts: 1})
		h.call(100, play.Reply(503, "Retry-After: 5"), time.Second)
		assert.Equal(t, []string{"WARN paused"}, hostLog(h.log.String()), "one pause that grows")
	})
}

// The hook and the log report each change of a host's state once, with the state.
//
//retrip:promise P19
func TestHost_TellsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := tellHost(t, retrip.Policy{})
		h.Hosts = map[string]retrip.Policy{"Example.com": {MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 2, Window: time.Minute, OpenFor: time.Second}}}
		for _, step := range []play.Step{play.Reply(503, "Retry-After: 1"), play.Reply(503), play.Reply(200), play.Reply(200)} {
			h.call(1, step, 2*time.Second)
		}
		var told, logged []string
		for _, s := range h.states {
			told = append(told, fmt.Sprint(s.Host, " ", s.Policy, " ", s.Breaker, " ", s.PausedFor))
		}
		const host = "example.com:80 example.com "
		assert.Equal(t, []string{host + "closed 1s", host + "open 0s", host + "half-open 0s", host + "closed 0s"}, told)
		lines := regexp.MustCompile(`level=(\S+) msg="retrip: host" host=example.com:80 change=(\S+) policy=example.com breaker=(\S+) open_for=\S+ paused_for=(\S+)`)
		for _, match := range lines.FindAllStringSubmatch(h.log.String(), -1) {
			logged = append(logged, strings.Join(match[1:], " "))
		}
		assert.Equal(t, []string{"WARN paused closed 1s", "WARN breaker_open open 0s", "INFO breaker_closed closed 0s"}, logged)
	})
}
