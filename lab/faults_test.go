// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// stubborn is the policy of the lab's tests: as many attempts as the faults may require,
// and no budget, since there is no fleet to protect.
var stubborn = retrip.Policy{
	MaxAttempts:    8,
	Backoff:        retrip.Backoff{Base: 10 * time.Millisecond, Cap: 300 * time.Millisecond},
	AttemptTimeout: time.Minute,
	Budget:         retrip.Off,
}

// ledger is a server that knows how often it has executed each request. It executes
// requests with the same Idempotency-Key once, and fails 8 % of all requests.
type ledger struct {
	mu       sync.Mutex
	draws    *rand.Rand
	failed   int
	corrupt  int
	executed map[string]int // by number
}

func (l *ledger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Lab-Id")
	w.Header().Set("Lab-Id", id)
	l.mu.Lock()
	fault := l.draws.IntN(75)
	if fault < 6 {
		l.failed++
	}
	l.mu.Unlock()
	switch fault {
	case 0:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case 1:
		_, _ = io.CopyN(io.Discard, r.Body, 10<<10)
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case 2:
		w.WriteHeader(http.StatusTooManyRequests)
		return
	case 3:
		panic(http.ErrAbortHandler)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // what hasn't arrived whole isn't executed
	}
	l.mu.Lock()
	if fmt.Sprintf("%x", sha256.Sum256(body)) != r.Header.Get("Lab-Sum") {
		l.corrupt++
	}
	if r.Header.Get("Idempotency-Key") == "" || l.executed[id] == 0 {
		l.executed[id]++
	}
	l.mu.Unlock()
	switch fault {
	case 4:
		panic(http.ErrAbortHandler)
	case 5:
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	_, _ = w.Write(answerTo(id))
}

// answerTo returns the answer to the request of a number: mostly a short one.
func answerTo(id string) []byte {
	n, _ := strconv.Atoi(id)
	return bytes.Repeat([]byte(id+" "), 1+n%100*(n%10/9*30+1))
}

// uploads are the requests of the callers: the most bytes and the kind of the body, and
// whether a retry may follow any outcome.
var uploads = []struct {
	method     string
	size       int
	kind       string
	repeatable bool
}{
	{http.MethodGet, 0, "", true}, {http.MethodDelete, 0, "", true},
	{http.MethodPut, 200 << 10, "bytes", true}, {http.MethodPut, 8 << 10, "stream", true}, {http.MethodPut, 500 << 10, "stream", false}, {http.MethodPut, 300 << 10, "file", true},
	{http.MethodPost, 8 << 10, "keyed", true}, {http.MethodPost, 8 << 10, "bytes", false}, {http.MethodPost, 8 << 10, "stream", false},
}

// upload returns request number id.
func upload(t *testing.T, url string, id int) (req *http.Request, body *play.SendBody) {
	u := uploads[id%len(uploads)]
	content := bytes.Repeat([]byte(strconv.Itoa(id)+"\n"), u.size*(id%7)/40)
	var reader io.Reader
	switch u.kind {
	case "file":
		name := filepath.Join(t.TempDir(), "body")
		assert.NoError(t, os.WriteFile(name, content, 0o600))
		reader = play.Must(os.Open(name))
	case "":
		reader = http.NoBody
	default:
		body = play.NewSend(string(content))
		reader = body
	}
	req = play.Must(http.NewRequest(u.method, url, reader))
	if u.kind == "bytes" || u.kind == "keyed" {
		req.ContentLength = int64(len(content))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	}
	if u.kind == "keyed" {
		req.Header.Set("Idempotency-Key", strconv.Itoa(id))
	}
	req.Header.Set("Lab-Id", strconv.Itoa(id))
	req.Header.Set("Lab-Sum", fmt.Sprintf("%x", sha256.Sum256(content)))
	return req, body
}

// No fault of the network or the server makes the server execute a POST without
// a key twice, corrupts a body, sends an answer to the wrong caller, or leaks a
// resource. On real time, timers and goroutines are used again, which the worlds
// can't see.
//
//retrip:promise P6 P7 P13
func TestFaults(t *testing.T) {
	requests := 1200
	if testing.Short() {
		requests = 300
	}
	for _, p := range Protos {
		t.Run(p.String(), func(t *testing.T) {
			goroutines, descriptors := runtime.NumGoroutine(), open()
			l := &ledger{draws: rand.New(rand.NewPCG(20, 1)), executed: map[string]int{}}
			server := Serve(p, l)
			proto := p
			if p == HTTP2 {
				proto = HTTP1 // the proxy can't read frames in TLS
			}
			proxy, err := NewCuts(server.Listener.Addr().String(), 40_000, proto, CutFIN, CutRST, CutFIN, CutRST, CutFIN, CutRST, CutFIN, CutSilence)
			require.NoError(t, err)
			policy := stubborn
			policy.AttemptTimeout, policy.BodyIdleTimeout = 300*time.Millisecond, 300*time.Millisecond
			transport := &retrip.Transport{Base: Base(p, server), Policy: policy}

			var group sync.WaitGroup
			var mu sync.Mutex
			told := map[string]int{} // status by number, 0 for an error
			var bodies []*play.SendBody
			const callers = 16
			for caller := range callers {
				group.Go(func() {
					for id := caller; id < requests; id += callers {
						req, body := upload(t, p.Scheme()+"://"+proxy.Addr()+"/", id)
						resp, err := transport.RoundTrip(req)
						status := 0
						if err == nil {
							got, err := io.ReadAll(resp.Body)
							resp.Body.Close()
							assert.Equal(t, strconv.Itoa(id), resp.Header.Get("Lab-Id"))
							if status = resp.StatusCode; status == http.StatusOK {
								want := answerTo(strconv.Itoa(id))
								assert.True(t, bytes.HasPrefix(want, got) && (err != nil || len(got) == len(want)), "another answer")
							}
						}
						mu.Lock()
						told[strconv.Itoa(id)] = status
						if body != nil {
							bodies = append(bodies, body)
						}
						mu.Unlock()
					}
				})
			}
			group.Wait()
			transport.CloseIdleConnections()
			proxy.Close()
			server.Close()

			succeeded, repeatable := 0, 0
			for id := range requests {
				u, name := uploads[id%len(uploads)], strconv.Itoa(id)
				if told[name] == http.StatusOK {
					assert.Positive(t, l.executed[name], "request %d: a lost success", id)
				}
				if u.method == http.MethodPost {
					assert.LessOrEqual(t, l.executed[name], 1, "request %d: a duplicate", id)
				}
				if u.repeatable {
					repeatable++
					succeeded += min(1, told[name]/http.StatusOK)
				}
			}
			t.Logf("%d cuts, %d failures, %d of %d succeeded", proxy.Made(), l.failed, succeeded, repeatable)
			assert.Len(t, told, requests, "each caller gets one answer")
			assert.Zero(t, l.corrupt, "bodies that arrived changed")
			assert.GreaterOrEqual(t, int(proxy.Made())+l.failed, requests/20, "a trial without faults proves nothing")
			assert.GreaterOrEqual(t, succeeded, repeatable*4/5)
			closed := func() bool {
				for _, b := range bodies {
					if b.Closed.Load() == 0 {
						return false
					}
				}
				return true
			}
			assert.True(t, within(30*time.Second, closed), "a body was never closed")
			back := func() bool {
				runtime.GC() // closes the pipes of package net
				return runtime.NumGoroutine() <= goroutines && open() <= descriptors
			}
			assert.True(t, within(30*time.Second, back),
				"%d goroutines and %d descriptors before, %d and %d after", goroutines, descriptors, runtime.NumGoroutine(), open())
		})
	}
}

// open returns the number of open descriptors, or 0 if the system doesn't tell.
func open() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

// stream returns a body without GetBody, which net/http alone can't send twice.
func stream(text string) io.Reader { return io.MultiReader(strings.NewReader(text)) }
