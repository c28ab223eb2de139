// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/memhttp"
)

const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver is a server whose endpoints follow a script by path. It verifies
// each attempt with Standard Webhooks' own library.
type receiver struct {
	*memhttp.Server
	t     *testing.T
	serve func(path string, w http.ResponseWriter)

	mu    sync.Mutex
	at    map[string][]time.Time // by path
	ids   map[string][]string
	times map[string][]string // the timestamps signed
}

func newReceiver(t *testing.T, serve func(path string, w http.ResponseWriter)) *receiver {
	r := &receiver{t: t, serve: serve, at: map[string][]time.Time{}, ids: map[string][]string{}, times: map[string][]string{}}
	verifier, err := standardwebhooks.NewWebhook(secret)
	require.NoError(t, err)
	r.Server = memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		assert.NoError(t, err)
		assert.NoError(t, verifier.Verify(body, req.Header), "signed afresh: within five minutes")
		r.mu.Lock()
		defer r.mu.Unlock()
		path := req.URL.Path
		r.at[path] = append(r.at[path], time.Now())
		r.ids[path] = append(r.ids[path], req.Header.Get("Webhook-Id"))
		r.times[path] = append(r.times[path], req.Header.Get("Webhook-Timestamp"))
		r.serve(path, w)
	}))
	return r
}

func (r *receiver) count(path string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.at[path])
}

// runs returns the times of the runs to a path: the attempts without those that
// the transport made right after another one.
func (r *receiver) runs(path string) (runs []time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, at := range r.at[path] {
		if at.Sub(last) > 4*time.Second {
			runs = append(runs, at)
		}
		last = at
	}
	return runs
}

func status(code int) func(string, http.ResponseWriter) {
	return func(_ string, w http.ResponseWriter) { w.WriteHeader(code) }
}

// start opens the store in a file and runs a sender on it until stop, which
// checks that both ended without an error.
func start(t *testing.T, r *receiver, file string) (store *Store, sender *Sender, stop func()) {
	t.Helper()
	store, err := Open(t.Context(), file)
	require.NoError(t, err)
	base := r.Transport()
	sender = NewSender(store, base, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sender.Run(ctx) }()
	return store, sender, sync.OnceFunc(func() {
		cancel()
		assert.NoError(t, <-done)
		assert.NoError(t, store.Close())
		base.CloseIdleConnections()
	})
}

func (r *receiver) endpoint(store *Store, id string) {
	r.t.Helper()
	require.NoError(r.t, store.AddEndpoint(r.t.Context(), id, r.URL+"/"+id, secret))
}

func send(t *testing.T, sender *Sender, n int) {
	t.Helper()
	for i := range n {
		_, err := sender.Send(t.Context(), fmt.Appendf(nil, `{"type":"test","n":%d}`, i))
		require.NoError(t, err)
	}
}

func counts(t *testing.T, store *Store, endpoint string) map[string]int {
	t.Helper()
	c, err := store.Counts(t.Context(), endpoint)
	require.NoError(t, err)
	return c
}

func TestSender_ScheduleOverDaysThenADeadLetterThenReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, status(500))
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		send(t, sender, 1)
		began := time.Now()
		time.Sleep(96 * time.Hour)

		runs := r.runs("/a")
		require.Len(t, runs, len(schedule)+1)
		assert.Less(t, runs[0].Sub(began), time.Second)
		for i, wait := range schedule {
			// The breaker may rest longer than the first waits, and the run
			// itself takes about a second.
			got := runs[i+1].Sub(runs[i])
			assert.GreaterOrEqual(t, got, wait, "run %d", i+2)
			assert.LessOrEqual(t, got, wait+wait/4+4*time.Second, "run %d", i+2)
		}
		assert.Equal(t, map[string]int{dead: 1}, counts(t, store, "a"))
		assert.Equal(t, 2*len(runs)-1, r.count("/a"), "two attempts in a run, but none after the third failed retry within an hour")
		assert.Len(t, unique(r.ids["/a"]), 1, "all attempts have the same id")
		assert.Greater(t, len(unique(r.times["/a"])), len(runs)-1, "a timestamp for each run")

		r.serve = status(204)
		n, err := store.Replay(t.Context(), "a")
		require.NoError(t, err)
		assert.EqualValues(t, 1, n)
		sender.Wake()
		time.Sleep(time.Second)
		assert.Equal(t, map[string]int{delivered: 1}, counts(t, store, "a"))
		assert.Equal(t, 1, number(t, store, `select runs from deliveries`), "the schedule started again")
	})
}

func number(t *testing.T, store *Store, query string) (n int) {
	t.Helper()
	require.NoError(t, store.db.QueryRow(query).Scan(&n))
	return n
}

func unique(s []string) map[string]bool {
	set := map[string]bool{}
	for _, v := range s {
		set[v] = true
	}
	return set
}

func TestSender_SignsEachAttemptAfresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := newReceiver(t, func(_ string, w http.ResponseWriter) {
			if n++; n == 1 {
				w.Header().Set("Retry-After", "3") // short enough for the transport to wait
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		})
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		send(t, sender, 1)
		time.Sleep(5 * time.Second)
		assert.Equal(t, map[string]int{delivered: 1}, counts(t, store, "a"))
		require.Len(t, r.times["/a"], 2)
		assert.NotEqual(t, r.times["/a"][0], r.times["/a"][1])
		assert.Equal(t, r.ids["/a"][0], r.ids["/a"][1])
	})
}

func TestSender_GoneDisables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, status(410))
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		send(t, sender, 100)
		time.Sleep(240 * time.Hour)
		assert.LessOrEqual(t, r.count("/a"), 4, "deliveries that were in progress")
		c := counts(t, store, "a")
		assert.Equal(t, c[dead], sum(c), "no message is left")
		send(t, sender, 1)
		assert.Equal(t, c, counts(t, store, "a"), "its queue is empty")
	})
}

func sum(counts map[string]int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestSender_RetryAfterIsForTheWholeEndpoint(t *testing.T) {
	for name, header := range map[string]string{"seconds": "7200", "date": "Sat, 01 Jan 2000 02:00:00 GMT"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				until := time.Now().Add(2 * time.Hour)
				r := newReceiver(t, func(_ string, w http.ResponseWriter) {
					if time.Now().Before(until) {
						w.Header().Set("Retry-After", header)
						w.WriteHeader(http.StatusTooManyRequests)
					}
				})
				store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
				defer stop()
				r.endpoint(store, "a")
				send(t, sender, 20)
				time.Sleep(time.Until(until) - time.Second)
				assert.LessOrEqual(t, r.count("/a"), 4, "only deliveries in progress when the endpoint answered")
				time.Sleep(3 * time.Hour)
				assert.Equal(t, map[string]int{delivered: 20}, counts(t, store, "a"))
			})
		})
	}
}

func TestSender_AnEndpointThatIsDownCostsOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		up := time.Now().Add(30 * time.Hour)
		r := newReceiver(t, func(path string, w http.ResponseWriter) {
			if path == "/down" && time.Now().Before(up) {
				w.WriteHeader(http.StatusBadGateway)
			}
		})
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "down")
		r.endpoint(store, "well") // on the same host
		send(t, sender, 500)
		time.Sleep(5 * time.Second)
		assert.Equal(t, map[string]int{delivered: 500}, counts(t, store, "well"))
		time.Sleep(time.Hour)
		assert.LessOrEqual(t, r.count("/down"), 30, "of 500 messages, in an hour")
		time.Sleep(time.Until(up) + 4*time.Hour)
		assert.Equal(t, map[string]int{delivered: 500}, counts(t, store, "down"), "nothing is lost")
		assert.Zero(t, number(t, store, `select failures from endpoints where id = 'down'`), "the run of failures has ended")
		assert.Equal(t, 500, r.count("/well"), "nothing twice")
	})
}

func TestSender_DaysOfFailuresDisable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, status(503))
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		for range 7 * 24 {
			send(t, sender, 1)
			time.Sleep(time.Hour)
		}
		c := counts(t, store, "a")
		assert.Equal(t, c[dead], sum(c))
		var why string
		require.NoError(t, store.db.QueryRow(`select disabled from endpoints`).Scan(&why))
		assert.Equal(t, "disabled: failing for 120h0m0s", why)
	})
}

// TestSender_Restarts: a killed process loses nothing, and its successor
// resends the deliveries that were in progress.
func TestSender_Restarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "q.db")
		hang := make(chan struct{})
		r := newReceiver(t, nil)
		r.serve = func(string, http.ResponseWriter) {
			r.mu.Unlock()
			<-hang
			r.mu.Lock()
		}
		store, sender, stop := start(t, r, file)
		r.endpoint(store, "a")
		send(t, sender, 10)
		time.Sleep(time.Second)
		assert.Equal(t, map[string]int{sending: 4, pending: 6}, counts(t, store, "a"))
		left := t.TempDir() // the state that a process killed now leaves behind
		require.NoError(t, os.CopyFS(left, os.DirFS(filepath.Dir(file))))
		close(hang)
		stop()

		r.serve, r.ids = status(200), map[string][]string{}
		store, _, stop = start(t, r, filepath.Join(left, "q.db"))
		defer stop()
		time.Sleep(time.Minute)
		assert.Equal(t, map[string]int{delivered: 10}, counts(t, store, "a"))
		assert.Len(t, unique(r.ids["/a"]), 10)
	})
}

func TestSender_StopsInTheMiddleOfARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "q.db")
		r := newReceiver(t, func(_ string, w http.ResponseWriter) {
			w.Header().Set("Retry-After", "4")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		store, sender, stop := start(t, r, file)
		r.endpoint(store, "a")
		send(t, sender, 1)
		time.Sleep(2 * time.Second)
		stop() // within the transport's wait
		store, err := Open(t.Context(), file)
		require.NoError(t, err)
		defer store.Close()
		var runs int
		require.NoError(t, store.db.QueryRow(`select runs from deliveries where state = 'pending'`).Scan(&runs))
		assert.Zero(t, runs, "a run that was cut off doesn't count")
	})
}

func TestSender_DoesNotFollowRedirects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReceiver(t, func(path string, w http.ResponseWriter) {
			if path == "/a" {
				w.Header().Set("Location", "/b")
				w.WriteHeader(http.StatusTemporaryRedirect)
			}
		})
		store, sender, stop := start(t, r, filepath.Join(t.TempDir(), "q.db"))
		defer stop()
		r.endpoint(store, "a")
		send(t, sender, 1)
		time.Sleep(time.Second)
		assert.Equal(t, 1, r.count("/a"))
		assert.Zero(t, r.count("/b"))
		assert.Equal(t, map[string]int{pending: 1}, counts(t, store, "a"))
	})
}

func TestEnqueue_IsPartOfTheCallersTransaction(t *testing.T) {
	store, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	require.NoError(t, err)
	defer store.Close()
	require.NoError(t, store.AddEndpoint(t.Context(), "a", "http://example.com/", secret))
	for _, commit := range []bool{false, true} {
		tx, err := store.db.Begin()
		require.NoError(t, err)
		_, err = Enqueue(t.Context(), tx, []byte("{}"))
		require.NoError(t, err)
		if commit {
			require.NoError(t, tx.Commit())
		} else {
			require.NoError(t, tx.Rollback())
		}
		assert.Equal(t, commit, sum(counts(t, store, "a")) == 1)
	}
	require.NoError(t, store.Prune(t.Context(), time.Now().Add(time.Hour)))
	assert.Equal(t, 1, sum(counts(t, store, "a")), "pending deliveries stay")
	_, err = store.db.Exec(`update deliveries set state = 'delivered'`)
	require.NoError(t, err)
	require.NoError(t, store.Prune(t.Context(), time.Now().Add(time.Hour)))
	assert.Empty(t, counts(t, store, "a"))
}

func TestAddEndpoint_RefusesASecretThatIsNone(t *testing.T) {
	store, err := Open(t.Context(), filepath.Join(t.TempDir(), "q.db"))
	require.NoError(t, err)
	defer store.Close()
	for _, bad := range []string{"", "secret", "whsec_", "whsec_c2hvcnQ=", "whsec_***"} {
		assert.ErrorContains(t, store.AddEndpoint(t.Context(), "a", "http://example.com/", bad), "a secret is")
	}
}

func TestPublic_RefusesOthers(t *testing.T) {
	client := &http.Client{Transport: Public()}
	for _, address := range []string{"127.0.0.1", "[::1]", "10.0.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "[fd00::1]", "[::ffff:127.0.0.1]", "0.0.0.0"} {
		_, err := client.Get("http://" + address + ":9/")
		require.Error(t, err)
		assert.Contains(t, err.Error(), "not a public address")
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memhttp.NewServer(t, memhttp.HTTP1, receivers())
		var out strings.Builder
		require.NoError(t, run(t.Context(), server.URL, server.Transport(), &out))
		for _, line := range []string{"endpoint=well run=1 state=delivered", "endpoint=flaky run=1 state=delivered", "endpoint=gone run=1 state=dead"} {
			assert.Contains(t, out.String(), line)
		}
	})
}
