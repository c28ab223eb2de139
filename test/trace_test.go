// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// notes records the arguments of hooks, one word each.
type notes struct{ lines []string }

// trace returns hooks whose lines begin with who.
func (n *notes) trace(who string) *retrip.Trace {
	note := func(hook string) func(retrip.Event) {
		return func(e retrip.Event) {
			errText := ""
			if e.Err != nil {
				errText = e.Err.Error()
			}
			n.lines = append(n.lines, strings.Join(strings.Fields(fmt.Sprint(who, hook, " #", e.Attempt, " ", e.StatusCode, " ", errText, " ", e.Reason,
				" wait=", e.Wait, " server=", e.FromServer, " at=", e.Elapsed, " ", e.Policy)), " "))
		}
	}
	return &retrip.Trace{Attempt: note("attempt"), Retry: note("retry"), GiveUp: note("giveup"), Done: note("done")}
}

// The hooks of a request have the right numbers, and those of the Transport come before
// the outer and the inner ones of the context. The stories show their order in a request.
//
//retrip:promise P19
func TestTrace_Order(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		n := &notes{}
		p := play.With(func(p *retrip.Policy) { p.AttemptTimeout = 2 * time.Second })
		tr := &retrip.Transport{Base: play.Base(play.Reply(429), play.Hang, play.Reply(503, "Retry-After: 60")), Policy: p, Trace: n.trace("own ")}
		req := play.Request(t, "GET", nil)
		ctx := retrip.WithTrace(retrip.WithTrace(retrip.WithTrace(req.Context(), n.trace("outer ")), nil), &retrip.Trace{})
		play.Finish(t, do(t, tr, req.WithContext(retrip.WithTrace(ctx, n.trace("inner ")))))
		var want []string
		for _, line := range []string{
			"attempt #1 0 wait=0s server=false at=0s default",
			"retry #1 429 throttled wait=1s server=false at=0s default",
			"attempt #2 0 wait=0s server=false at=1s default",
			"retry #2 0 retrip: no response within Policy.AttemptTimeout timeout wait=1s server=false at=3s default",
			"attempt #3 0 wait=0s server=false at=4s default",
			"giveup #3 503 wait_too_long wait=1m0s server=true at=4s default",
			"done #3 503 wait_too_long wait=1m0s server=true at=4s default",
		} {
			want = append(want, "own "+line, "outer "+line, "inner "+line)
		}
		assert.Equal(t, want, n.lines)
	})
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

// A route whose retries wait for successes is named, once, and the log says when that is over.
func TestTrace_HostRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		base := play.Base(play.Reply(503))
		tr := &retrip.Transport{Base: base, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		call := func(path string, status int) {
			base.Steps = []play.Step{play.Reply(status)}
			getFrom(t, tr, "http://example.com"+path)
		}
		stopped := func() string { return play.Must(tr.HostState("example.com:80")).StoppedRoutes }
		for range 50 {
			call("/v2/search/42", 503)
			for range 10 {
				call("/v2/orders/42", 200)
			}
		}
		assert.Equal(t, 1, strings.Count(log.String(), "level=WARN"))
		assert.Contains(t, log.String(), `change=retries_stopped`)
		assert.Contains(t, log.String(), `stopped_routes="GET /search"`)
		for range 2 {
			assert.Equal(t, "GET /search", stopped())
			call("/v2/search/42", 200)
		}
		assert.Empty(t, stopped())
		for range 253 {
			require.Len(t, play.Held(tr), 1)
			assert.NotContains(t, log.String(), "budget_full")
			call("/v2/search/42", 200)
		}
		assert.Empty(t, play.Held(tr))
		assert.Equal(t, 1, strings.Count(log.String(), "level=INFO msg=\"retrip: host\" host=example.com:80 change=budget_full"))
	})
}
