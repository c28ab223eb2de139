// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package gate_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// Nothing is sent in a pause that is longer than MaxWait. Every request fails
// at once, and the log names the MaxWait. Metrics sum up the waits.
//
//retrip:promise P23
func TestGate_MaxWaitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		base := play.Base(play.Reply(429, "Retry-After: 60"), play.Reply(200))
		tr := &retrip.Transport{Base: base, Metrics: &retrip.Metrics{}, Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}},
			Logger: slog.New(slog.NewTextHandler(&log, nil))}
		testenv.Drop(t, tr, play.Request(t, "GET", nil))
		for range 29 {
			start := time.Now()
			_, err := tr.RoundTrip(play.Request(t, "GET", nil))
			assert.Equal(t, retrip.ReasonWaitTooLong, play.AsError(t, err).Reason)
			assert.Zero(t, time.Since(start))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 1, base.Attempts())
		assert.Contains(t, play.Counted(t, tr.Metrics), "give_ups_total{default,wait_too_long} 30")
		assert.Regexp(t, `level=INFO msg="retrip: give up".* reason=wait_too_long status=429 wait=1m0s max_wait=30s`, log.String())

		time.Sleep(2 * time.Second) // the remaining 29 s are short enough
		testenv.Drop(t, tr, play.Request(t, "GET", nil))
		assert.GreaterOrEqual(t, base.At[1], 60*time.Second)
		reg := prometheus.NewPedanticRegistry()
		reg.MustRegister(tr.Metrics)
		for _, f := range play.Must(reg.Gather()) {
			if f.GetName() == "retrip_gate_wait_seconds" {
				h := f.Metric[0].GetHistogram()
				assert.EqualValues(t, 1, h.GetSampleCount())
				assert.InDelta(t, (base.At[1] - 31*time.Second).Seconds(), h.GetSampleSum(), 1e-9)
			}
		}
	})
}

// A caller who is alone waits for at most two of the times that the server asks for,
// and a second, whatever the pace is: each of its requests is refused once.
//
//retrip:promise P23
func TestGate_LoneCaller(t *testing.T) {
	for _, word := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
		for _, pause := range []time.Duration{word + time.Second, 2 * word, 6 * word, time.Minute} {
			t.Run(fmt.Sprint(word, " ", pause), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sent := 0
					base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						time.Sleep(50 * time.Millisecond)
						resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}
						if sent++; sent%2 == 1 {
							resp.StatusCode = http.StatusTooManyRequests
							resp.Header.Set("Retry-After", strconv.Itoa(int(word.Seconds())))
						}
						return resp, nil
					})
					tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Minute}}
					for range 50 {
						start := time.Now()
						resp, err := tr.RoundTrip(play.Request(t, "GET", nil))
						require.NoError(t, err)
						assert.Equal(t, http.StatusOK, resp.StatusCode)
						assert.LessOrEqual(t, time.Since(start), 2*word+time.Second+200*time.Millisecond)
						time.Sleep(pause)
					}
				})
			})
		}
	}
}

// Two keys of one host have a gate each. Refusals of one key hold back no
// request of the other, and nothing reveals the keys.
//
//retrip:promise P23
func TestGate_Key(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		asked := 0
		tr := &retrip.Transport{
			Metrics: &retrip.Metrics{},
			Logger:  slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if r.Header.Get("Authorization") == "poor-secret" {
					return play.Reply(429, "Retry-After: 8")(r)
				}
				return play.Reply(200)(r)
			}),
			Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On, Key: func(r *http.Request) string {
				asked++
				return r.Header.Get("Authorization")
			}}},
		}
		send := func(method, key string) time.Duration {
			req := play.Request(t, method, nil)
			req.Header.Set("Authorization", key)
			start := time.Now()
			testenv.Drop(t, tr, req)
			return time.Since(start)
		}
		send("POST", "rich-secret")
		assert.Zero(t, asked, "no host is in trouble")
		send("POST", "poor-secret")
		assert.Equal(t, 1, asked)
		assert.Zero(t, send("POST", "rich-secret"))
		state := play.Must(tr.HostState("example.com:80"))
		assert.Equal(t, 8*time.Second, state.PausedFor)
		assert.GreaterOrEqual(t, send("POST", "poor-secret"), 8*time.Second)
		assert.Zero(t, send("GET", "rich-secret"))
		time.Sleep(time.Minute)
		assert.Zero(t, send("GET", "rich-secret"))
		for _, s := range tr.HostStates() {
			assert.NotContains(t, s.Host+s.Policy, "secret")
		}
		for _, line := range play.Counted(t, tr.Metrics) {
			assert.NotContains(t, line, "secret")
		}
		assert.NotEmpty(t, log.String())
		assert.NotContains(t, log.String(), "secret")
	})
}
