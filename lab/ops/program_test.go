// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// tally counts events under the names that the metrics use: "requests
// recovered", "attempts 5xx", "give_ups deadline", "open".
type tally map[string]float64

// scene describes what happens at one host: n requests, one after another. Each
// has the same outcome, except for the tokens they use up together.
type scene struct {
	host    string // also the pattern of its policy
	unnamed bool   // its policy is the default
	hosts   int    // of the pattern, one after another; 0 means one
	policy  retrip.Policy
	n       int
	method  string
	body    func() io.Reader
	ctx     context.Context

	// serve answers request i when it is sent for the nth time. fail, if not
	// nil, may fail it before it is sent.
	serve func(i, n int, w http.ResponseWriter, r *http.Request)
	fail  func(n int) error

	each  tally // added by every request
	whole tally // added by all of them together
}

// timeout is an error like that of a server that is too slow.
type timeout struct{}

func (timeout) Error() string { return "too slow" }
func (timeout) Timeout() bool { return true }

func status(codes ...int) func(i, n int, w http.ResponseWriter, r *http.Request) {
	return func(_, n int, w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.WriteHeader(codes[min(n, len(codes))-1])
	}
}

// asking answers with a header that asks for a wait, and with 200 after that.
func asking(code int, header, value string) func(i, n int, w http.ResponseWriter, r *http.Request) {
	return func(_, n int, w http.ResponseWriter, _ *http.Request) {
		if n == 1 {
			w.Header().Set(header, value)
			w.WriteHeader(code)
		}
	}
}

func failOnce(err error) func(int) error {
	return func(n int) error {
		if n == 1 {
			return err
		}
		return nil
	}
}

// beaten answers each late request only after its hedge has arrived, and the hedge never. At
// the last host it is the other way round. The delay of a host is known after its first requests.
func beaten() func(i, n int, w http.ResponseWriter, r *http.Request) {
	var mu sync.Mutex
	hedges := map[string]chan struct{}{}
	return func(i, _ int, _ http.ResponseWriter, r *http.Request) {
		if i%hedged < hedged-2 {
			return
		}
		// On a busy machine, the hedge may be the first to arrive.
		key, isHedge := r.Host+r.URL.Path, r.Header.Get("Retry-Attempt") == "2"
		mu.Lock()
		if hedges[key] == nil {
			hedges[key] = make(chan struct{})
		}
		hedge := hedges[key]
		mu.Unlock()
		wins := i/hedged == hedging-1
		if isHedge {
			close(hedge)
		}
		if wins == isHedge {
			<-hedge
		} else {
			<-r.Context().Done()
		}
		mu.Lock()
		if hedges[key] == hedge {
			delete(hedges, key)
		}
		mu.Unlock()
	}
}

// The last two requests to each of the hosts get a hedge: as many as are saved up.
const hedging, hedged = 10, 22

// tallied returns a tally of one of each.
func tallied(events ...string) tally {
	t := tally{}
	for _, event := range events {
		t[event]++
	}
	return t
}

// recovered is what a request adds that succeeds at its second attempt, and gaveUp what one
// adds that gives up after an attempt.
func recovered(result, reason string, more ...string) tally {
	return tallied(append(more, "requests recovered", "attempts "+result, "attempts 2xx", "retries "+reason)...)
}

func gaveUp(result, reason string) tally {
	return tallied("requests gave_up", "attempts "+result, "give_ups "+reason)
}

func scenes() []scene {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	milliseconds := retrip.Policy{Dialects: []string{"retry-after-ms"}}
	gated := retrip.Policy{Dialects: milliseconds.Dialects, Gate: retrip.Gate{Enabled: retrip.On}}
	once := func() io.Reader { return io.MultiReader(strings.NewReader("only once")) }
	return []scene{
		{host: "unnamed.test", unnamed: true, n: 50, serve: status(404), each: tallied("requests answered", "attempts 4xx")},
		{host: "plain.test", n: 300, serve: status(200), each: tallied("requests answered", "attempts 2xx")},
		{host: "flaky.test", n: 60, serve: status(503, 200), each: recovered("5xx", "server_error")},
		{host: "rare.test", n: 6, serve: status(503, 200), each: recovered("5xx", "server_error")},
		{
			// Seven retries that fail: three for the first request, three for the second, one for the third.
			host: "down.test", policy: retrip.Policy{MaxAttempts: 4}, n: 40, serve: status(500),
			each: tallied("requests gave_up", "attempts 5xx"),
			whole: tally{"attempts 5xx": 7, "retries server_error": 7, "give_ups max_attempts": 2, "give_ups retries_failing": 38,
				"missing": 1.5, "troubled": 1},
		},
		{host: "orders.test", n: 30, method: http.MethodPost, serve: status(503), each: gaveUp("5xx", "not_idempotent")},
		{
			host: "uploads.test", policy: retrip.Policy{MaxReplayBody: retrip.Off}, n: 25, method: http.MethodPut, serve: status(503),
			body: once, each: gaveUp("5xx", "body_not_replayable"),
		},
		{host: "limited.test", policy: milliseconds, n: 40, serve: asking(429, "Retry-After-Ms", "5"), each: recovered("429", "throttled")},
		{host: "busy.test", policy: milliseconds, n: 25, serve: asking(503, "Retry-After-Ms", "5"), each: recovered("5xx", "server_error", "pauses")},
		{
			// The gate holds one request, for slightly longer than the pause.
			host: "queue.test", policy: gated, n: 1, serve: asking(429, "Retry-After-Ms", fmt.Sprint(heldFor.Milliseconds())),
			each: recovered("429", "throttled", "pauses", "held"), whole: tallied("troubled"),
		}, {
			// The wait is longer than the policy allows.
			host: "quota.test", policy: gated, n: 25, serve: asking(429, "Retry-After", "3600"),
			each: tallied("requests gave_up", "give_ups wait_too_long"), whole: tallied("attempts 429", "pauses", "paused", "troubled"),
		},
		{host: "far.test", n: 25, serve: asking(429, "Retry-After", "3600"), each: gaveUp("429", "wait_too_long")},
		{host: "hurry.test", policy: retrip.Policy{Deadline: 15 * time.Second}, n: 25, serve: asking(429, "Retry-After", "20"), each: gaveUp("429", "deadline")},
		{host: "slow.test", n: 25, serve: status(200), fail: failOnce(timeout{}), each: recovered("timeout", "timeout")},
		{
			host: "reset.test", n: 25, serve: status(200), fail: failOnce(&net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}),
			each: recovered("error", "error"),
		}, {
			host: "nowhere.test", n: 25, fail: failOnce(&net.DNSError{Err: "no such host", Name: "nowhere.test", IsNotFound: true}),
			each: tallied("requests failed", "attempts error"),
		},
		{host: "quit.test", n: 25, ctx: canceled, each: tallied("requests canceled", "give_ups canceled")},
		{
			// net/http repeats every second request on its own, after its connection dies.
			host: "stale.test", policy: retrip.Policy{AttemptTimeout: time.Minute}, n: 40,
			serve: func(i, n int, w http.ResponseWriter, _ *http.Request) {
				if i%2 == 1 && n == 1 {
					panic(http.ErrAbortHandler)
				}
			},
			each: tallied("requests answered", "attempts 2xx"), whole: tally{"sends": 20},
		}, {
			host: "*.hedged.test", hosts: hedging, policy: retrip.Policy{Hedge: 0.2, RetryHeader: "Retry-Attempt"}, n: hedging * hedged, serve: beaten(),
			each: tallied("requests answered", "attempts 2xx"), whole: tally{"attempts superseded": 20, "hedges lost": 18, "hedges won": 2},
		}, {
			// A minimum volume of ten failures opens the breaker.
			host: "broken.test", n: 40, serve: status(500), each: tallied("requests gave_up"),
			policy: retrip.Policy{MaxAttempts: 1, Breaker: retrip.Breaker{Ratio: 0.5, MinVolume: 10, OpenFor: time.Hour}},
			whole: tally{"attempts 5xx": 10, "give_ups max_attempts": 10, "give_ups breaker_open": 30, "transitions open": 1,
				"open": 1, "troubled": 1},
		},
	}
}

// heldFor is the pause at the gate of a scene, in the middle of a bucket.
const heldFor = 60 * time.Millisecond

// program is a program with retrip that records what it has done.
type program struct {
	metrics    *httptest.Server // serves /metrics
	transport  func() *retrip.Transport
	transports []*retrip.Transport // of all runs so far
	scenes     []scene

	mu    sync.Mutex
	sent  map[string]int // in this run, by host and path
	waits map[waitKey][]float64
}

// runs is how often TestQueries runs all scenes.
const runs = 2

type waitKey struct{ policy, source string }

func newProgram(t *testing.T) *program {
	t.Helper()
	p := &program{scenes: scenes()}
	backend := httptest.NewServer(http.HandlerFunc(p.serve))
	t.Cleanup(backend.Close)
	base := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, backend.Listener.Addr().String())
	}}
	t.Cleanup(base.CloseIdleConnections)

	metrics := &retrip.Metrics{Durations: []string{}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)
	p.metrics = httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(p.metrics.Close)

	fleet := retrip.NewFleet(away{}.Add)
	t.Cleanup(func() { fleet.Close() })

	hosts := map[string]retrip.Policy{}
	for _, s := range p.scenes {
		if !s.unnamed {
			hosts[s.host] = s.policy
		}
	}
	p.transport = func() *retrip.Transport {
		return &retrip.Transport{
			Base:    &failing{base, p},
			Policy:  retrip.Policy{Backoff: retrip.Backoff{Base: 2 * time.Millisecond}},
			Hosts:   hosts,
			Fleet:   fleet,
			Metrics: metrics,
			Trace:   &retrip.Trace{Retry: p.retry},
		}
	}
	require.NoError(t, p.transport().Validate())
	return p
}

// away is a store of the fleet's account that is never there.
type away struct{}

func (away) Add(context.Context, string, float64, float64) (float64, error) {
	return 0, errors.New("connection refused")
}

func (p *program) retry(e retrip.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key := waitKey{e.Policy, "backoff"}
	if e.FromServer {
		key.source = "server"
	}
	p.waits[key] = append(p.waits[key], e.Wait.Seconds())
}

// at returns the host of request i.
func (s *scene) at(i int) string {
	return strings.Replace(s.host, "*", strconv.Itoa(i*max(1, s.hosts)/s.n), 1)
}

func (p *program) scene(host string) *scene {
	_, domain, _ := strings.Cut(host, ".")
	for i := range p.scenes {
		if s := p.scenes[i].host; s == host || s == "*."+domain {
			return &p.scenes[i]
		}
	}
	return nil
}

func (p *program) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.sent[r.Host+r.URL.Path]++
	n := p.sent[r.Host+r.URL.Path]
	p.mu.Unlock()
	var i int
	fmt.Sscanf(r.URL.Path, "/%d", &i)
	// A request that the base has failed counts as sent.
	if s := p.scene(r.Host); s.serve != nil {
		s.serve(i, n, w, r)
	}
}

// failing fails requests before they are sent, as their scene demands.
type failing struct {
	*http.Transport
	p *program
}

func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if s := f.p.scene(r.URL.Host); s.fail != nil {
		key := "failed " + r.URL.Host + r.URL.Path
		f.p.mu.Lock()
		f.p.sent[key]++
		n := f.p.sent[key]
		f.p.mu.Unlock()
		if err := s.fail(n); err != nil {
			return nil, err
		}
	}
	return f.Transport.RoundTrip(r)
}

// run plays all scenes, one at a time, with a new Transport.
func (p *program) run(t *testing.T) {
	t.Helper()
	transport := p.transport()
	p.transports = append(p.transports, transport)
	p.sent, p.waits = map[string]int{}, map[waitKey][]float64{}
	client := &http.Client{Transport: transport}
	var wg sync.WaitGroup
	for _, s := range p.scenes {
		wg.Go(func() {
			for i := range s.n {
				ctx := s.ctx
				if ctx == nil {
					ctx = t.Context()
				}
				var body io.Reader
				if s.body != nil {
					body = s.body()
				}
				req, err := http.NewRequestWithContext(ctx, s.method, fmt.Sprintf("http://%s/%d", s.at(i), i), body)
				if !assert.NoError(t, err) {
					return
				}
				if resp, err := client.Do(req); err == nil {
					io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
			}
		})
	}
	wg.Wait()
}

// known returns what the program has done, by policy and by the names that the
// metrics use.
func (p *program) known() map[string]tally {
	all := map[string]tally{}
	for _, s := range p.scenes {
		sum := tally{}
		for what, n := range s.each {
			sum[what] += n * float64(s.n)
		}
		for what, n := range s.whole {
			sum[what] += n
		}
		if s.unnamed {
			s.host = "default"
		}
		all[s.host] = sum
	}
	return all
}
