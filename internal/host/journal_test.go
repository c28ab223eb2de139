// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
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
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/testenv"
)

// book is a handler that counts the records from level Info on, such as "WARN paused",
// and adds up what they say was left out.
type book struct {
	mu      sync.Mutex
	records map[string]int
	omitted int64
	hosts   map[string]bool
}

func newBook() *book { return &book{records: map[string]int{}, hosts: map[string]bool{}} }

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
		case "host":
			b.hosts[a.Value.String()] = true
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

// call makes a request and drops its response.
func call(t *testing.T, tr http.RoundTripper, url string) {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if assert.NoError(t, err) {
		if resp, err := tr.RoundTrip(req); err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
}

func responds(req *http.Request, status int, header http.Header) *http.Response {
	return &http.Response{StatusCode: status, Header: header, Body: http.NoBody, Request: req}
}

// A gate that follows a rate limit pauses all the time, which is no news. The log says
// when the limit begins to bind, and once more after an hour without a pause.
//
//retrip:promise P19
func TestLog_OfAGateAtALimit(t *testing.T) {
	for name, limit := range map[string]struct {
		every time.Duration // gap between two tokens
		burst float64
		after string // Retry-After
	}{"10/s": {time.Second / 10, 10, "1"}, "10/s, no word": {time.Second / 10, 1, ""}, "2/s": {time.Second / 2, 5, "2"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				var mu sync.Mutex
				tokens, last, off := limit.burst, time.Now(), false
				tr := &retrip.Transport{
					Policy: retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxAttempts: 20}, Logger: slog.New(b),
					Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
						time.Sleep(20 * time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						tokens = min(limit.burst, tokens+float64(time.Since(last))/float64(limit.every))
						last = time.Now()
						switch {
						case off:
						case tokens < 1 && limit.after == "":
							return responds(req, 429, nil), nil
						case tokens < 1:
							return responds(req, 429, http.Header{"Retry-After": {limit.after}}), nil
						default:
							tokens--
						}
						return responds(req, 200, nil), nil
					}),
				}
				run := func(length time.Duration) {
					end := time.Now().Add(length)
					var workers sync.WaitGroup
					for range 5 {
						workers.Go(func() {
							for time.Now().Before(end) {
								call(t, tr, "http://example.com/")
							}
						})
					}
					workers.Wait()
				}
				run(time.Hour)
				assert.Equal(t, map[string]int{"WARN paused": 1}, b.records)
				off = true
				for range 130 {
					time.Sleep(time.Minute)
					call(t, tr, "http://example.com/")
				}
				assert.Equal(t, map[string]int{"WARN paused": 1, "INFO pause_over": 1}, b.records)
				off = false
				run(5 * time.Minute)
				assert.Equal(t, map[string]int{"WARN paused": 2, "INFO pause_over": 1}, b.records)
			})
		})
	}
}

// A host that keeps asking for pauses, at whatever rate it is called, is one trouble.
//
//retrip:promise P19
func TestLog_OfPauses(t *testing.T) {
	for _, every := range []time.Duration{time.Second / 10, 3 * time.Second, time.Minute, 50 * time.Minute} {
		for name, budget := range map[string]float64{"budget": 0, "no budget": retrip.Off} {
			t.Run(fmt.Sprint(name, " ", every), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					b := newBook()
					n := 0
					tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 1, Budget: budget}, Logger: slog.New(b),
						Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
							if n++; n%2 == 0 {
								return responds(req, 200, nil), nil
							}
							return responds(req, 503, http.Header{"Retry-After": {"1"}}), nil
						})}
					for range 1000 {
						call(t, tr, "http://example.com/")
						call(t, tr, "http://example.com/")
						time.Sleep(every)
					}
					assert.Equal(t, 1, b.records["WARN paused"])
				})
			})
		}
	}
}

// If the first request after a long time begins a pause, the end of the last trouble
// comes first.
//
//retrip:promise P19
func TestLog_OfAPauseAfterALongTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 1}, Logger: slog.New(b), Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			return responds(req, 503, http.Header{"Retry-After": {"1"}}), nil
		})}
		for range 3 {
			call(t, tr, "http://example.com/")
			time.Sleep(61 * time.Minute)
		}
		assert.Equal(t, 3, b.records["WARN paused"])
		assert.Equal(t, 2, b.records["INFO pause_over"])
	})
}

// In an outage, the log has a record of the first give-up and then one a minute, which
// says how many were left out. None is lost.
//
//retrip:promise P19
func TestLog_OfAnOutage(t *testing.T) {
	testenv.Slow(t)
	outages := map[string]struct {
		policy retrip.Policy
		base   func(*http.Request) (*http.Response, error)
	}{
		"503":       {retrip.Policy{}, func(req *http.Request) (*http.Response, error) { return responds(req, 503, nil), nil }},
		"no budget": {retrip.Policy{Budget: retrip.Off, MaxAttempts: 2}, func(req *http.Request) (*http.Response, error) { return responds(req, 503, nil), nil }},
		"error":     {retrip.Policy{MaxAttempts: 1}, func(*http.Request) (*http.Response, error) { return nil, errors.New("reset") }},
		"pauses": {retrip.Policy{MaxAttempts: 2}, func(req *http.Request) (*http.Response, error) {
			return responds(req, 503, http.Header{"Retry-After": {"99"}}), nil
		}},
		"too patient": {retrip.Policy{}, func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}},
		"breaker": {retrip.Policy{Breaker: retrip.Breaker{Ratio: 0.5}}, func(req *http.Request) (*http.Response, error) { return responds(req, 503, nil), nil }},
		"gate": {retrip.Policy{Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Second}, func(req *http.Request) (*http.Response, error) {
			return responds(req, 429, http.Header{"Retry-After": {"60"}}), nil
		}},
	}
	for name, tt := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBook()
				down, gaveUp := true, 0
				var mu sync.Mutex
				tr := &retrip.Transport{Policy: tt.policy, Logger: slog.New(b), Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
					if !down {
						return responds(req, 200, nil), nil
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
				const seconds, perSecond = 150, 80
				var requests sync.WaitGroup
				for range seconds * perSecond {
					requests.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
						defer cancel()
						req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
						if assert.NoError(t, err) {
							if resp, err := tr.RoundTrip(req); err == nil {
								resp.Body.Close()
							}
						}
					})
					time.Sleep(time.Second / 200)
				}
				requests.Wait()
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

// The log is bounded over any number of hosts that are down, and its memory is too.
//
//retrip:promise P19
func TestLog_OfManyHosts(t *testing.T) {
	testenv.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		b := newBook()
		gaveUp := 0
		tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 1}, Logger: slog.New(b), Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			if req.URL.Host == "good.example" {
				return responds(req, 200, nil), nil
			}
			return responds(req, 503, nil), nil
		})}
		tr.Trace = &retrip.Trace{GiveUp: func(retrip.Event) { gaveUp++ }}
		for i := range 20_000 {
			call(t, tr, fmt.Sprintf("http://host%d.example/", i))
			time.Sleep(time.Millisecond)
		}
		assert.LessOrEqual(t, b.lines(), host.MostTopics+1)
		time.Sleep(2 * time.Minute)
		call(t, tr, "http://good.example/")
		require.Equal(t, 20_000, gaveUp)
		said := b.records["INFO give up max_attempts"] + b.records["INFO give up max_attempts, omitted"]
		assert.EqualValues(t, gaveUp, int64(said)+b.omitted, "%v", b.records)
		assert.True(t, b.hosts["others"], "hosts without a place of their own: %v", len(b.hosts))
	})
}

// A record of one host says so if it counts records of others: each host has given up
// at least as often as its records say.
//
//retrip:promise P19
func TestLog_WhoseRecordsAreOmitted(t *testing.T) {
	testenv.OneGoroutine(t)
	for _, hosts := range []int{3, host.MostTopics, host.MostTopics + 1, host.MostTopics + 50} {
		t.Run(fmt.Sprint(hosts, " hosts"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				said, gaveUp, others := map[string]int64{}, map[string]int64{}, int64(0)
				tr := &retrip.Transport{Policy: retrip.Policy{MaxAttempts: 1}, Logger: slog.New(slog.NewJSONHandler(&out, nil)),
					Base: testenv.RoundTripper(func(req *http.Request) (*http.Response, error) { return responds(req, 503, nil), nil })}
				tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) { gaveUp[e.Request.URL.String()]++ }}
				for range 70 {
					for i := range hosts {
						call(t, tr, fmt.Sprintf("http://host%d.example:80", i))
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
	for seed := range uint64(50) {
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
