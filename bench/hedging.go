// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cristalhq/hedgedhttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/hedgepolicy"
	"github.com/retrip/retrip"
)

// Hedger is a way to hedge requests.
type Hedger struct {
	Name string
	Wrap func(base http.RoundTripper) http.RoundTripper
	cost bool // only its cost is measured: it doesn't hedge
}

// hedgerDelay is the delay of a library that doesn't find its own: about the 95th
// percentile of the server of measureTail.
const hedgerDelay = 10 * time.Millisecond

// Hedgers lists what is measured. The first is the reference.
var Hedgers = []Hedger{
	{Name: "bare net/http", Wrap: func(base http.RoundTripper) http.RoundTripper { return base }},
	{Name: "retrip, AttemptTimeout", Wrap: hedgingRetrip(0, time.Hour), cost: true},
	{Name: "retrip, Hedge 0.05", Wrap: hedgingRetrip(0.05, 0)},
	{Name: "retrip, both", Wrap: hedgingRetrip(0.05, time.Hour), cost: true},
	{Name: "hedgedhttp, 10 ms", Wrap: func(base http.RoundTripper) http.RoundTripper {
		rt, err := hedgedhttp.NewRoundTripper(hedgerDelay, 2, base)
		if err != nil {
			panic(err) // the arguments are constant
		}
		return rt
	}},
	{Name: "failsafe-go, p95", Wrap: func(base http.RoundTripper) http.RoundTripper {
		return failsafehttp.NewRoundTripper(base, hedgepolicy.NewWithDelayQuantile[*http.Response](0.95, 100, 20))
	}},
}

func hedgingRetrip(share float64, timeout time.Duration) func(http.RoundTripper) http.RoundTripper {
	return func(base http.RoundTripper) http.RoundTripper {
		return &retrip.Transport{Base: base, Policy: retrip.Policy{Hedge: share, AttemptTimeout: timeout}}
	}
}

// HedgerResult is what was measured of a Hedger.
type HedgerResult struct {
	Name           string
	Ns             float64 // of a request that gets no hedge, over a base that answers at once
	Allocs         int64
	P50, P99, P999 float64 // in milliseconds, while 1 % of the answers stall for 300 ms; 0: not measured
	Extra          float64 // requests that the server got, beyond those that were made, as a share
	Good           int     // of the tries, of which the hedge gets a 503 at once and the first attempt a 200 later
	Posts          int     // as many POSTs: those that the server got twice
	Frozen         float64 // milliseconds until the answer when an HTTP/2 connection has frozen; 0: none within frozenLimit
}

// Hedging holds the results of all Hedgers.
type Hedging struct {
	Machine, Go, Date string
	Procs             int
	Rounds, Requests  int // of each round
	Tries             int // of each behaviour
	Hedgers           []HedgerResult
}

const frozenLimit = 2 * time.Second

// MeasureHedging measures all Hedgers: the tail in rounds, in which they take turns, with
// so many requests each, and with so many tries of each behaviour.
func MeasureHedging(rounds, requests, tries int) (*Hedging, error) {
	r := &Hedging{Machine: Machine(), Go: runtime.Version(), Date: time.Now().UTC().Format(time.DateOnly), Procs: runtime.GOMAXPROCS(0), Rounds: rounds, Requests: requests, Tries: tries}
	for _, h := range Hedgers {
		one := HedgerResult{Name: h.Name}
		one.Ns, one.Allocs = unhedged(h)
		if !h.cost {
			if err := one.behave(h, tries); err != nil {
				return nil, fmt.Errorf("%s: %w", h.Name, err)
			}
		}
		r.Hedgers = append(r.Hedgers, one)
	}
	tails := make([][]HedgerResult, len(Hedgers))
	for range rounds {
		for i, h := range Hedgers {
			if h.cost {
				continue
			}
			var one HedgerResult
			if err := one.tail(h, requests); err != nil {
				return nil, fmt.Errorf("%s: %w", h.Name, err)
			}
			tails[i] = append(tails[i], one)
		}
	}
	for i := range r.Hedgers {
		r.Hedgers[i].medians(tails[i])
	}
	return r, nil
}

// medians sets the tail of r to the medians of the rounds.
func (r *HedgerResult) medians(rounds []HedgerResult) {
	median := func(of func(*HedgerResult) float64) float64 {
		var all []float64
		for i := range rounds {
			all = append(all, of(&rounds[i]))
		}
		if len(all) == 0 {
			return 0
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	r.P50 = median(func(r *HedgerResult) float64 { return r.P50 })
	r.P99 = median(func(r *HedgerResult) float64 { return r.P99 })
	r.P999 = median(func(r *HedgerResult) float64 { return r.P999 })
	r.Extra = median(func(r *HedgerResult) float64 { return r.Extra })
}

// unhedged measures a GET that succeeds at once: the fastest of five times.
func unhedged(h Hedger) (ns float64, allocs int64) {
	ns = math.Inf(1)
	for range 5 {
		result := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			d, c := tripper{h.Wrap(&stub{})}, newCall(context.Background(), http.MethodGet, target, 0, false)
			for b.Loop() {
				do(b, d, c.next())
			}
		})
		ns = min(ns, float64(result.T.Nanoseconds())/float64(result.N))
		allocs = result.AllocsPerOp()
	}
	return ns, allocs
}

func (r *HedgerResult) behave(h Hedger, tries int) (err error) {
	if r.Good, r.Posts, err = answers503(h, tries); err != nil {
		return err
	}
	r.Frozen, err = frozen(h)
	return err
}

func get(rt http.RoundTripper, ctx context.Context, method, url, body string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	if body == "" {
		req.Body, req.GetBody = nil, nil
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// tail measures the times of requests to a server of which the answers take 5 ms, and
// one in a hundred 300 ms longer.
func (r *HedgerResult) tail(h Hedger, requests int) error {
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		served.Add(1)
		took := 5 * math.Exp(0.4*rand.NormFloat64())
		if rand.IntN(100) == 0 {
			took += 300
		}
		time.Sleep(time.Duration(took * float64(time.Millisecond)))
	}))
	defer server.Close()
	base := &http.Transport{MaxIdleConnsPerHost: 100}
	defer base.CloseIdleConnections()
	rt := h.Wrap(base)
	const workers, warmUp = 10, 2000
	times := make([]float64, requests)
	run := func(n int, record bool) error {
		var next atomic.Int64
		var group sync.WaitGroup
		var failed atomic.Value
		for range workers {
			group.Go(func() {
				for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
					begun := time.Now()
					if _, err := get(rt, context.Background(), http.MethodGet, server.URL, ""); err != nil {
						failed.Store(err)
					}
					if record {
						times[i] = time.Since(begun).Seconds() * 1000
					}
				}
			})
		}
		group.Wait()
		err, _ := failed.Load().(error)
		return err
	}
	if err := run(warmUp, false); err != nil {
		return err
	}
	served.Store(0)
	if err := run(requests, true); err != nil {
		return err
	}
	slices.Sort(times)
	at := func(share float64) float64 { return times[int(share*float64(requests))] }
	r.P50, r.P99, r.P999 = at(0.5), at(0.99), at(0.999)
	r.Extra = float64(served.Load())/float64(requests) - 1
	return nil
}

// answers503 makes requests of which the server answers the first copy with a 200 after
// 200 ms and others with a 503 at once, and then such POSTs. It returns how many GETs got
// the 200, and how many POSTs reached the server twice.
func answers503(h Hedger, tries int) (good, posts int, err error) {
	var mu sync.Mutex
	seen := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/quick" {
			time.Sleep(2 * time.Millisecond)
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		mu.Lock()
		seen[req.URL.Path]++
		n := seen[req.URL.Path]
		mu.Unlock()
		if n > 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}))
	defer server.Close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	rt := h.Wrap(base)
	for i := range tries {
		for range 60 {
			if _, err := get(rt, context.Background(), http.MethodGet, server.URL+"/quick", ""); err != nil {
				return 0, 0, err
			}
		}
		status, err := get(rt, context.Background(), http.MethodGet, fmt.Sprint(server.URL, "/get", i), "")
		if err != nil {
			return 0, 0, err
		}
		if status == http.StatusOK {
			good++
		}
		post := fmt.Sprint("/post", i)
		if _, err := get(rt, context.Background(), http.MethodPost, server.URL+post, "pay 5"); err != nil {
			return 0, 0, err
		}
		mu.Lock()
		if seen[post] > 1 {
			posts++
		}
		mu.Unlock()
	}
	return good, posts, nil
}

// frozen measures a request over an HTTP/2 connection on which nothing arrives any more.
func frozen(h Hedger) (ms float64, err error) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Millisecond) }))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	var first atomic.Pointer[freezer]
	base := server.Client().Transport.(*http.Transport).Clone()
	base.ForceAttemptHTTP2 = true
	dialer := &net.Dialer{}
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dialer.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		f := &freezer{Conn: conn, closed: make(chan struct{})}
		first.CompareAndSwap(nil, f)
		return f, nil
	}
	defer base.CloseIdleConnections()
	rt := h.Wrap(base)
	for range 200 {
		if _, err := get(rt, context.Background(), http.MethodGet, server.URL, ""); err != nil {
			return 0, err
		}
	}
	first.Load().frozen.Store(true)
	defer first.Load().Close()
	ctx, cancel := context.WithTimeout(context.Background(), frozenLimit)
	defer cancel()
	begun := time.Now()
	if _, err := get(rt, ctx, http.MethodGet, server.URL, ""); err != nil {
		if ctx.Err() != nil {
			return 0, nil
		}
		return 0, err
	}
	return time.Since(begun).Seconds() * 1000, nil
}

// freezer is a connection that stops delivering what arrives.
type freezer struct {
	net.Conn
	frozen atomic.Bool
	once   sync.Once
	closed chan struct{}
}

func (f *freezer) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.frozen.Load() {
		<-f.closed
		return 0, net.ErrClosed
	}
	return n, err
}

func (f *freezer) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

// LoadHedging returns the results that were saved in the repository at root.
func LoadHedging(root string) (*Hedging, error) {
	data, err := os.ReadFile(hedgingFile(root))
	if err != nil {
		return nil, err
	}
	r := &Hedging{}
	return r, json.Unmarshal(data, r)
}

// Save writes r to the repository at root.
func (r *Hedging) Save(root string) error {
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(hedgingFile(root), append(data, '\n'), 0o644)
}

func hedgingFile(root string) string { return filepath.Join(root, "bench", "results", "hedging.json") }

// HedgingPage is the page with the section that Section returns.
const HedgingPage = "docs/hedging-tables.md"

// UpdatePage rewrites the generated section of the page in the repository at root.
func (r *Hedging) UpdatePage(root string) error {
	path := filepath.Join(root, filepath.FromSlash(HedgingPage))
	text, err := os.ReadFile(path)
	if err == nil {
		text, err = replaceSection(text, r.Section())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, text, 0o644)
}

// Section returns the results as Markdown.
func (r *Hedging) Section() string {
	var out strings.Builder
	fmt.Fprintf(&out, "Medians of %d rounds of %d requests on %s, %d cores, %s, %s.\n\n", r.Rounds, r.Requests, r.Machine, r.Procs, r.Go, r.Date)
	out.WriteString("| | p50 ms | p99 ms | p99.9 ms | more requests | a 503 of the hedge, then a 200 | POSTs sent twice | frozen HTTP/2 connection | ns without a hedge | allocations |\n|---|" + strings.Repeat("---:|", 9) + "\n")
	for _, h := range r.Hedgers {
		cells := []string{"", "", "", "", "", "", ""}
		if h.P50 > 0 {
			cells = []string{fmt.Sprintf("%.1f", h.P50), fmt.Sprintf("%.0f", h.P99), fmt.Sprintf("%.0f", h.P999), fmt.Sprintf("%.1f %%", 100*h.Extra),
				fmt.Sprintf("%d of %d succeed", h.Good, r.Tries), fmt.Sprintf("%d of %d", h.Posts, r.Tries),
				cmp.Or(strings.TrimPrefix(fmt.Sprintf("%.0f ms", h.Frozen), "0 ms"), "none within "+frozenLimit.String())}
		}
		fmt.Fprintf(&out, "| %s | %s | %.0f | %d |\n", h.Name, strings.Join(cells, " | "), h.Ns, h.Allocs)
	}
	return out.String()
}
