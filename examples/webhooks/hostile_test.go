// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestSender_EndpointsThatHangHoldUpNoOther uses endpoints that accept every
// connection and never answer. At first they are unknown, then known to fail.
func TestSender_EndpointsThatHangHoldUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, nil)
		hung := make(chan struct{})
		r.serve = func(path string, _ http.ResponseWriter) {
			if strings.HasPrefix(path, "/hangs") {
				r.mu.Unlock()
				<-hung
				r.mu.Lock()
			}
		}
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		defer close(hung)
		for i := range 20 {
			r.endpoint(store, fmt.Sprintf("hangs-%d", i))
		}
		r.endpoint(store, "well")
		for hour := range 5 {
			send(t, sender, 10)
			time.Sleep(time.Second)
			assert.Equal(t, map[string]int{delivered: 10 * (hour + 1)}, counts(t, store, "well"), "after a second, hour %d", hour)
			time.Sleep(2 * time.Minute)
			for range 60 {
				assert.LessOrEqual(t, counts(t, store, "hangs-0")[sending], 1, "a probe")
				time.Sleep(time.Minute)
			}
		}
		assert.Less(t, r.count("/hangs-0"), 60, "attempts in five hours")
	})
}

// TestSender_FailingEndpointsGetHalfOfTheWorkers uses more endpoints that hang
// than there are workers.
func TestSender_FailingEndpointsGetHalfOfTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, nil)
		hung := make(chan struct{})
		r.serve = func(path string, _ http.ResponseWriter) {
			if path != "/well" {
				r.mu.Unlock()
				<-hung
				r.mu.Lock()
			}
		}
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		defer close(hung)
		for i := range 2 * workers {
			r.endpoint(store, fmt.Sprintf("hangs-%d", i))
		}
		r.endpoint(store, "well")
		_, err := store.db.Exec(`update endpoints set failures = 1, failing = ? where id <> 'well'`, time.Now().UnixMilli())
		require.NoError(t, err)
		send(t, sender, 1)
		time.Sleep(5 * time.Second)
		var sent int
		require.NoError(t, store.db.QueryRow(`select count(*) from deliveries where state = 'sending'`).Scan(&sent))
		assert.Equal(t, workers/2, sent)
		assert.Equal(t, map[string]int{delivered: 1}, counts(t, store, "well"))
	})
}

// TestSender_TheClockIsSet moves all stored times into the future, as if the
// clock had been set back, or into the past.
func TestSender_TheClockIsSet(t *testing.T) {
	for name, tt := range map[string]struct {
		by, latest time.Duration
		busy       bool // other deliveries make the sender check all the time
	}{
		"an hour back":         {time.Hour, 2 * time.Hour, true},
		"ten years back":       {10 * 365 * 24 * time.Hour, 10 * time.Minute, false},
		"ten years back, busy": {10 * 365 * 24 * time.Hour, 10 * time.Minute, true},
		"an hour forward":      {-time.Hour, 6 * time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				works := false
				r := newReceiver(t, func(path string, w http.ResponseWriter) {
					if path == "/a" && !works {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				})
				store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
				defer stop()
				r.endpoint(store, "a")
				r.endpoint(store, "busy")
				send(t, sender, 20)
				time.Sleep(15 * time.Minute)
				set := func() {
					by := tt.by.Milliseconds()
					_, err := store.db.Exec(`update deliveries set due = due + ?1 where state = 'pending';
						update endpoints set rests_until = rests_until + ?1, failing = failing + ?1`, by)
					require.NoError(t, err)
				}
				pass := func(d time.Duration) {
					for range d / (5 * time.Minute) {
						if tt.busy {
							_, err := store.db.Exec(`update deliveries set state = 'pending', due = ? where id = (select max(id) from deliveries where endpoint = 'busy')`, time.Now().Add(time.Minute).UnixMilli())
							require.NoError(t, err)
						}
						time.Sleep(5 * time.Minute)
					}
				}
				before := r.count("/a")
				set()
				send(t, sender, 20)
				pass(12 * time.Hour)
				assert.Less(t, r.count("/a")-before, 60, "the waits of the breaker start again")
				assert.Zero(t, counts(t, store, "a")[dead])
				works = true
				set()
				pass(tt.latest + 2*time.Hour)
				assert.Equal(t, map[string]int{delivered: 40}, counts(t, store, "a"))
			})
		})
	}
}

// TestOpen_OneProcess: a second process would resend what the first is sending.
func TestOpen_OneProcess(t *testing.T) {
	file := filepath.Join(t.TempDir(), "q.db")
	store, err := Open(t.Context(), file)
	require.NoError(t, err)
	require.NoError(t, store.AddEndpoint(t.Context(), "a", "http://example.com/", secret))
	_, err = Open(t.Context(), file)
	require.ErrorContains(t, err, "locked")
	require.NoError(t, store.AddEndpoint(t.Context(), "b", "http://example.com/", secret), "the first goes on")
	require.NoError(t, store.Close())
	store, err = Open(t.Context(), file)
	require.NoError(t, err)
	require.NoError(t, store.Close())
}

// TestSender_RotatesASecret: while both secrets are in use, receivers with
// either of them accept.
func TestSender_RotatesASecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const next = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
		var headers []http.Header
		var bodies [][]byte
		base := roundTripper(func(req *http.Request) (*http.Response, error) {
			d := req.Context().Value(deliveryKey{}).(*Delivery)
			headers, bodies = append(headers, req.Header), append(bodies, d.Payload)
			return &http.Response{StatusCode: 200, Body: http.NoBody, Header: http.Header{}, Request: req}, nil
		})
		store, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
		require.NoError(t, err)
		defer store.Close()
		sender := NewSender(store, base, discard)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- sender.Run(ctx) }()
		for _, secrets := range []string{secret, next + " " + secret, next} {
			require.NoError(t, store.AddEndpoint(t.Context(), "a", "http://example.com/", secrets))
			send(t, sender, 1)
			time.Sleep(time.Second)
		}
		cancel()
		require.NoError(t, <-done)
		require.Len(t, headers, 3)
		for i, accepted := range [][]string{{secret}, {secret, next}, {next}} {
			for _, s := range []string{secret, next} {
				verifier, err := standardwebhooks.NewWebhook(s)
				require.NoError(t, err)
				err = verifier.Verify(bodies[i], headers[i])
				assert.Equal(t, strings.Contains(strings.Join(accepted, " "), s), err == nil, "message %d, %s", i, s)
			}
		}
	})
}

// TestSchedule compares the schedule with that of Standard Webhooks, and the
// jitter with its bounds.
func TestSchedule(t *testing.T) {
	const waits = "5s 5m0s 30m0s 2h0m0s 5h0m0s 10h0m0s 14h0m0s 20h0m0s 24h0m0s"
	assert.Equal(t, "["+waits+"]", fmt.Sprint(schedule))
	least, most := time.Hour, time.Duration(0)
	for range 1000 {
		d := jitter(time.Minute)
		least, most = min(least, d), max(most, d)
	}
	assert.GreaterOrEqual(t, least, time.Minute)
	assert.Less(t, least, 61*time.Second)
	assert.Greater(t, most, 74*time.Second)
	assert.LessOrEqual(t, most, 75*time.Second)
}

// TestExample_IsShort checks the length of the sender that docs/cookbook.md
// states.
func TestExample_IsShort(t *testing.T) {
	files, err := filepath.Glob("*.*")
	require.NoError(t, err)
	lines := 0
	for _, file := range files {
		if strings.HasPrefix(file, "go.") || strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		lines += strings.Count(string(text), "\n")
	}
	assert.LessOrEqual(t, lines, 600)
	assert.Greater(t, lines, 500)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestSender_AFailureAfterMonthsIsNoStreak: an endpoint that is rarely called
// isn't disabled because its last message failed too.
func TestSender_AFailureAfterMonthsIsNoStreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		works := false
		r := newReceiver(t, func(_ string, w http.ResponseWriter) {
			if !works {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		send(t, sender, 1)
		time.Sleep(60 * 24 * time.Hour)
		require.Equal(t, map[string]int{dead: 1}, counts(t, store, "a"))
		send(t, sender, 1)
		time.Sleep(3 * time.Second) // its first run fails
		works = true
		time.Sleep(3 * time.Hour)
		assert.Equal(t, map[string]int{dead: 1, delivered: 1}, counts(t, store, "a"))
	})
}

// TestStore_ClaimsByIndex: of 100 000 due deliveries, a claim reads only those
// that it sends.
func TestStore_ClaimsByIndex(t *testing.T) {
	store, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	require.NoError(t, err)
	defer store.Close()
	rows, err := store.db.Query(`explain query plan `+nextDue, workers/2, 0)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, parent, unused int
		var detail string
		require.NoError(t, rows.Scan(&id, &parent, &unused, &detail))
		t.Log(detail)
		assert.NotRegexp(t, `^SCAN d`, detail)
	}
	require.NoError(t, rows.Err())
}

func BenchmarkDue(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		for _, endpoints := range []int{1, 1000} {
			b.Run(fmt.Sprintf("due=%d/endpoints=%d", n, endpoints), func(b *testing.B) {
				store, err := Open(b.Context(), filepath.Join(b.TempDir(), "q.db"))
				require.NoError(b, err)
				defer store.Close()
				tx, err := store.db.Begin()
				require.NoError(b, err)
				for e := range endpoints {
					_, err := tx.Exec(`insert into endpoints (id, url, secrets) values (?, 'http://example.com', ?)`, e, secret)
					require.NoError(b, err)
				}
				for i := range n {
					id := fmt.Sprint("msg_", i)
					_, err := tx.Exec(`insert into messages values (?, '{}', 0)`, id)
					require.NoError(b, err)
					_, err = tx.Exec(`insert into deliveries (message, endpoint, due) values (?, ?, 0)`, id, i%endpoints)
					require.NoError(b, err)
				}
				require.NoError(b, tx.Commit())
				for b.Loop() {
					d, _, err := store.claim(b.Context())
					require.NoError(b, err)
					require.NotNil(b, d)
					require.NoError(b, store.finish(b.Context(), d, verdict{state: pending}))
				}
			})
		}
	}
}

var discard = slog.New(slog.DiscardHandler)
