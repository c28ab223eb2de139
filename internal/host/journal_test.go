// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// book is a handler that counts the records from level Info on, such as "WARN paused",
// and adds up what they say was left out.
type book struct {
	mu      sync.Mutex
	records map[string]int
	omitted int64
}

func newBook() *book { return &book{records: map[string]int{}} }

func (b *book) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (b *book) WithAttrs([]slog.Attr) slog.Handler               { return b }
func (b *book) WithGroup(string) slog.Handler                    { return b }
func (b *book) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	what := r.Level.String() + " " + strings.TrimPrefix(r.Message, "retrip: ")
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "change":
			what = r.Level.String() + " " + a.Value.String()
		case "reason":
			what += " " + a.Value.String()
		case "omitted":
			b.omitted += a.Value.Int64()
			what += ", omitted"
		}
		return true
	})
	b.records[what]++
	return nil
}

func (b *book) lines() (n int) {
	for _, lines := range b.records {
		n += lines
	}
	return n
}

// call makes a request, which may fail, and drops its response.
func call(t *testing.T, tr http.RoundTripper, url string) {
	_ = testenv.Try(tr, play.MustRequest(t, http.MethodGet, url, nil))
}

// always is a Base that makes the same step for each request, and keeps none.
func always(step play.Step) testenv.RoundTripper { return testenv.RoundTripper(step) }

// A host that keeps asking for pauses, at whatever rate it is called, is one trouble.
// After an hour without a pause comes its end, and then, maybe, the next.
//
//retrip:promise P19
func TestLog_OfPauses(t *testing.T) {
	for _, every := range []time.Duration{time.Second / 10, 3 * time.Second, time.Minute, 50 * time.Minute, 61 * time.Minute} {
		for name, policy := range map[string]retrip.Policy{"budget": {}, "no budget": {Budget: retrip.Off}, "gate": {Gate: retrip.Gate{Enabled: retrip.On}}} {
			play.Bubble(t, fmt.Sprint(name, " ", every), func(t *testing.T) {
				const pauses = 100
				b, n := newBook(), 0
				policy.MaxAttempts = 1
				tr := &retrip.Transport{Policy: policy, Logger: slog.New(b),
					Base: always(func(req *http.Request) (*http.Response, error) {
						if n++; n%2 == 0 && every < time.Hour {
							return play.Reply(200)(req)
						}
						return play.Reply(503, "Retry-After: 1")(req)
					})}
				for range pauses {
					call(t, tr, "http://example.com/")
					call(t, tr, "http://example.com/")
					time.Sleep(every)
				}
				if every < time.Hour {
					assert.Equal(t, []int{1, 0}, []int{b.records["WARN paused"], b.records["INFO pause_over"]})
				} else {
					assert.Equal(t, []int{pauses, pauses - 1}, []int{b.records["WARN paused"], b.records["INFO pause_over"]})
				}
			})
		}
	}
}

// In an outage, the log has a record of the first give-up and then one a minute, which
// says how many were left out. None is lost.
//
//retrip:promise P19
func TestLog_OfAnOutage(t *testing.T) {
	testenv.Slow(t)
	for name, tt := range map[string]struct {
		policy retrip.Policy
		base   play.Step
	}{
		"503":         {retrip.Policy{}, play.Reply(503)},
		"no budget":   {retrip.Policy{Budget: retrip.Off, MaxAttempts: 2}, play.Reply(503)},
		"error":       {retrip.Policy{MaxAttempts: 1}, play.Err(errors.New("reset"))},
		"pauses":      {retrip.Policy{MaxAttempts: 2}, play.Reply(503, "Retry-After: 99")},
		"too patient": {retrip.Policy{}, play.Hang},
		"breaker":     {retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5}}, play.Reply(503)},
		"gate":        {retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Second}, play.Reply(429, "Retry-After: 60")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				down, gaveUp := true, 0
				var mu sync.Mutex
				tr := &retrip.Transport{Policy: tt.policy, Logger: slog.New(b), Base: always(func(req *http.Request) (*http.Response, error) {
					if !down {
						return play.Reply(200)(req)
					}
					return tt.base(req)
				})}
				tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) {
					mu.Lock()
					defer mu.Unlock()
					if e.Reason != retrip.ReasonBreakerOpen || e.Attempt > 0 {
						gaveUp++
					}
				}}
				const requests, perSecond = 3500, 50
				var underWay sync.WaitGroup
				for range requests {
					underWay.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						_ = testenv.Try(tr, play.Request(t, http.MethodGet, nil).WithContext(ctx))
					})
					time.Sleep(time.Second / perSecond)
				}
				underWay.Wait()
				lines := b.lines()
				t.Logf("%d give-ups, %d lines: %v", gaveUp, lines, b.records)
				assert.LessOrEqual(t, lines, 20)
				down = false
				time.Sleep(2 * time.Minute)
				call(t, tr, "http://other.example/")
				said := 0
				for what, lines := range b.records {
					if strings.HasPrefix(what, "INFO give up ") {
						said += lines
					}
				}
				flushed := b.records["INFO give-ups"]
				assert.Equal(t, gaveUp, said+int(b.omitted), "%d flushed: %v", flushed, b.records)
			})
		})
	}
}

// A record of one host says so if it counts records of others: each host has given up
// at least as often as its records say.
//
//retrip:promise P19
func TestLog_WhoseRecordsAreOmitted(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, hosts := range []int{host.MostTopics, host.MostTopics + 1, host.MostTopics + 50} {
		t.Run(fmt.Sprint(hosts, " hosts"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				said, gaveUp, others, first := map[string]int64{}, map[string]int64{}, int64(0), 0
				tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 1}, Logger: slog.New(slog.NewJSONHandler(&out, nil)), Base: always(play.Reply(503))}
				tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) { gaveUp[e.Request.URL.String()]++ }}
				for round := range 25 {
					for i := range hosts {
						call(t, tr, fmt.Sprintf("http://host%d.example:80", i))
					}
					if round == 0 {
						first = bytes.Count(out.Bytes(), []byte("\n"))
					}
					time.Sleep(3 * time.Second)
				}
				for line := range bytes.Lines(out.Bytes()) {
					var r struct {
						Msg, URL    string
						Omitted     int64
						OmittedHost string `json:"omitted_host"`
					}
					require.NoError(t, json.Unmarshal(line, &r))
					switch {
					case r.Msg != "retrip: give up":
					case r.OmittedHost == host.OtherHosts:
						said[r.URL]++
						others += r.Omitted
					default:
						said[r.URL] += 1 + r.Omitted
					}
				}
				assert.LessOrEqual(t, first, host.MostTopics+1, "the log is bounded")
				for url, n := range said {
					assert.LessOrEqual(t, n, gaveUp[url], url)
				}
				assert.Equal(t, hosts > host.MostTopics, others > 0)
			})
		})
	}
}

// However many requests use the journal at once, every record is either in the log or
// counted once as left out.
//
//retrip:promise P19
func TestJournal_LosesNothing(t *testing.T) {
	var j host.Journal
	var clock, told, logged atomic.Int64
	rest := func(now time.Duration) {
		j.Rest(now, func(_ host.Topic, omitted int) { logged.Add(int64(omitted)) })
	}
	var requests sync.WaitGroup
	for seed := range uint64(20) {
		requests.Go(func() {
			r := rand.New(rand.NewPCG(seed, 19))
			for range 300 {
				now := time.Duration(clock.Add(r.Int64N(int64(100 * time.Millisecond))))
				name := fmt.Sprint("host", r.IntN(host.MostTopics+50))
				switch r.IntN(8) {
				case 0:
					j.Pause(name, "default", now+time.Second, now)
				case 1:
					rest(now)
				default:
					told.Add(1)
					if say, omitted, _ := j.Record(host.Topic{Host: name, Record: "give up"}, now); say {
						logged.Add(int64(1 + omitted))
					}
				}
			}
		})
	}
	requests.Wait()
	rest(time.Duration(clock.Load()) + 2*time.Hour)
	assert.Equal(t, told.Load(), logged.Load())
	assert.False(t, j.Pending())
}

// At the level of slog.Default, the log says that retries work, and which error no retry
// can fix: once, and then once a minute with the number of the others.
//
//retrip:promise P19
func TestLog_AtInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		attempts := 0
		tr := &retrip.Transport{Logger: slog.New(slog.NewTextHandler(&log, nil)), Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}},
			Hosts: map[string]retrip.Policy{"gate.example": {Gate: retrip.Gate{Enabled: retrip.On}}},
			Base: always(func(r *http.Request) (*http.Response, error) {
				attempts++
				switch {
				case r.URL.Host == "nowhere.example":
					return nil, &net.OpError{Op: "dial", Err: &net.DNSError{Err: "no such host", Name: r.URL.Host, IsNotFound: true}}
				case attempts%2 == 1 && r.URL.Host == "gate.example":
					return play.Reply(429, "Retry-After: 1")(r)
				case attempts%2 == 1 && r.URL.Host != "well.example":
					return play.Reply(503)(r)
				}
				return play.Reply(200)(r)
			})}
		said := func(host string) string {
			log.Reset()
			attempts = 0
			call(t, tr, "http://"+host+"/path?secret=1")
			return strings.TrimSpace(regexp.MustCompile(`time=\S+ `).ReplaceAllString(log.String(), ""))
		}
		assert.Empty(t, said("well.example"))
		const recovered = `level=INFO msg="retrip: recovered" method=GET url=http://flaky.example/path policy=default attempt=2 reason=server_error status=200`
		const failed = `level=INFO msg="retrip: failed" method=GET url=http://nowhere.example/path policy=default attempt=1 reason=no_such_host error="dial: lookup nowhere.example: no such host"`
		assert.Equal(t, recovered, said("flaky.example"))
		assert.Equal(t, failed, said("nowhere.example"))
		for range 10 {
			assert.Empty(t, said("flaky.example"))
			assert.Empty(t, said("nowhere.example"))
		}
		time.Sleep(time.Minute)
		assert.Equal(t, recovered+" omitted=10", said("flaky.example"))
		assert.Equal(t, failed+" omitted=10", said("nowhere.example"))
		assert.Empty(t, said("flaky.example"))
		time.Sleep(3 * time.Minute)
		assert.Equal(t, `level=INFO msg="retrip: omitted" record="retrip: recovered" host=flaky.example:80 policy=default reason=server_error omitted=1`, said("well.example"))

		// A gate follows a rate limit by refused requests that recover.
		assert.NotContains(t, said("gate.example"), "recovered")
	})
}
