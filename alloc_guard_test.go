// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// allocBase answers with the given statuses in turn, without allocating.
type allocBase struct {
	statuses []int
	body     io.ReadCloser
	n        int
	resp     http.Response
}

func (b *allocBase) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		req.Body.Close()
	}
	b.resp = http.Response{StatusCode: b.statuses[b.n%len(b.statuses)], Body: b.body, Request: req}
	b.n++
	return &b.resp, nil
}

// foreignBody is a body of a type that retrip doesn't know.
type foreignBody struct{}

func (foreignBody) Read([]byte) (int, error) { return 0, io.EOF }
func (foreignBody) Close() error             { return nil }

// inMemory is a body that is closed without being drained.
var inMemory = io.NopCloser(strings.NewReader(""))

// bodyOfNetHTTP returns a body that is drained like any other of net/http.
func bodyOfNetHTTP(t *testing.T) io.ReadCloser {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") }))
	defer server.Close()
	resp, err := server.Client().Get(server.URL)
	require.NoError(t, err)
	resp.Body.Close()
	return resp.Body
}

// deepContext can be cancelled and is ten layers deep.
func deepContext(t *testing.T) context.Context {
	type key int
	ctx := t.Context()
	for i := range 10 {
		ctx = context.WithValue(ctx, key(i), i)
	}
	return ctx
}

// P16: a first attempt that succeeds is the caller's own request and allocates
// nothing, even while another host is in trouble, or its own has failed requests.
//
//retrip:promise P16
func TestAllocations(t *testing.T) {
	deep := deepContext(t)
	deadline, cancel := context.WithTimeout(deep, time.Hour)
	defer cancel()
	request := func(method, url string, body io.Reader) *http.Request {
		return must(http.NewRequestWithContext(t.Context(), method, url, body))
	}
	const here = "http://example.com/path"
	post := request("POST", here, strings.NewReader("body"))
	require.NotNil(t, post.GetBody)
	for _, tt := range []struct {
		name   string
		req    *http.Request
		status int
	}{
		{"GET", request("GET", here, nil), 200},
		{"HEAD", request("HEAD", here, nil), 200},
		{"POST with GetBody", post, 200},
		{"deep context", request("GET", here, nil).WithContext(deep), 200},
		{"deadline", request("GET", here, nil).WithContext(deadline), 200},
		{"404", request("GET", here, nil), 404},
	} {
		for _, setUp := range []struct {
			name string
			tr   *Transport
		}{
			{"zero", &Transport{}},
			{"metrics", &Transport{Metrics: &Metrics{}}},
			{"hosts", &Transport{Metrics: &Metrics{}, Hosts: map[string]Policy{"*.com": {MaxAttempts: 2}, "api.example.com:80": {}}}},
			{"breaker and gate", &Transport{Policy: Policy{Gate: Gate{Enabled: On}, Breaker: Breaker{Ratio: .5}}}},
			{"dialects", &Transport{Policy: Policy{Dialects: []string{"github", "openai"}}}},
		} {
			for _, trouble := range []string{"", "http://elsewhere.org", here} {
				if trouble == here && setUp.tr.Policy.Gate.Enabled == On {
					continue // its gate and breaker allocate
				}
				resp := &http.Response{StatusCode: tt.status, Body: http.NoBody}
				var got *http.Request
				down := &http.Response{StatusCode: 500, Body: http.NoBody}
				answer := down
				tr := &Transport{Policy: setUp.tr.Policy, Hosts: setUp.tr.Hosts, Metrics: setUp.tr.Metrics, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					got = r
					return answer, nil
				})}
				if trouble != "" {
					p := Policy{Backoff: Backoff{Base: Off}}
					if trouble == here {
						p.MaxAttempts = 1
					}
					_, err := tr.RoundTrip(request("GET", trouble, nil).WithContext(WithPolicy(t.Context(), p)))
					require.NoError(t, err)
					require.NotEmpty(t, tr.HostStates())
				}
				answer = resp
				n := testing.AllocsPerRun(100, func() {
					if _, err := tr.RoundTrip(tt.req); err != nil {
						t.Error(err)
					}
				})
				assert.Zero(t, n, "%s, %s, trouble at %q", tt.name, setUp.name, trouble)
				assert.Same(t, tt.req, got)
			}
		}
	}
}

// These are the allocations of timeouts and retries in addition to those of the
// base. docs/performance.md accounts for each.
//
//retrip:promise P16
func TestAllocations_Counted(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	timeouts := Policy{Deadline: time.Hour, AttemptTimeout: time.Minute}
	now := Policy{Backoff: Backoff{Base: Off}, Budget: Off}
	both := Policy{Deadline: time.Hour, AttemptTimeout: time.Minute, Backoff: now.Backoff, Budget: now.Budget}
	hedge, hedged := Policy{Hedge: 0.05}, Policy{Deadline: time.Hour, AttemptTimeout: time.Minute, Hedge: 0.05}
	success, failures := []int{200}, []int{503, 503, 200}
	deep, drained := deepContext(t), bodyOfNetHTTP(t)
	for _, tt := range []struct {
		name     string
		policy   Policy
		ctx      context.Context
		method   string
		body     string
		statuses []int
		answer   io.ReadCloser
		want     float64
	}{
		{"GET with timeouts", timeouts, context.Background(), "GET", "", success, foreignBody{}, 1},
		{"GET with timeouts, deep context", timeouts, deep, "GET", "", success, foreignBody{}, 1},
		{"POST with timeouts", timeouts, context.Background(), "POST", "x", success, foreignBody{}, 1},
		{"GET without a hedge", hedge, context.Background(), "GET", "", success, foreignBody{}, 2},
		{"GET without a hedge, with timeouts", hedged, deep, "GET", "", success, foreignBody{}, 2},
		{"QUERY that gets none, with timeouts", hedged, context.Background(), "QUERY", "x", success, foreignBody{}, 1},
		{"POST that gets none", hedge, context.Background(), "POST", "x", success, foreignBody{}, 0},
		{"503, 503, 200", now, context.Background(), "GET", "", failures, drained, 1},
		{"503, 503, 200, in memory", now, context.Background(), "GET", "", failures, inMemory, 1},
		{"503, 503, 200, cancellable", now, deep, "GET", "", failures, drained, 1},
		{"503, 503, 200 with timeouts", both, context.Background(), "GET", "", failures, drained, 4},
		{"503, 503, 200 with a key", now, context.Background(), "POST", "x", failures, drained, 7},
		{"503, 503, 200, foreign bodies", now, context.Background(), "GET", "", failures, foreignBody{}, 1},
		{"503, 503, 200 without bodies", now, context.Background(), "GET", "", failures, http.NoBody, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := &allocBase{statuses: tt.statuses, body: tt.answer}
			transport := &Transport{Base: base, Policy: tt.policy, Metrics: &Metrics{}}
			var body io.Reader
			if tt.body != "" {
				body = strings.NewReader(tt.body)
			}
			req := must(http.NewRequestWithContext(tt.ctx, tt.method, "http://example.com/", body))
			req.Header["Idempotency-Key"] = []string{"k"}
			allocs := testing.AllocsPerRun(200, func() {
				resp, err := transport.RoundTrip(req)
				if err != nil || resp.StatusCode >= 500 {
					t.Error(resp, err)
					return
				}
				resp.Body.Close()
			})
			assert.Equal(t, tt.want, allocs)
			assert.Empty(t, transport.HostStates())
		})
	}
}

// A stream that can be read only once is kept in chunks from a pool. The three
// allocations are the attempt, the state of the body, and one by reflection
// that looks into an io.NopCloser.
func TestAllocations_Stream(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	resp := &http.Response{StatusCode: 200, Body: http.NoBody}
	buffer := make([]byte, 32<<10)
	base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		for {
			if _, err := req.Body.Read(buffer); err != nil {
				return resp, req.Body.Close()
			}
		}
	})
	source := strings.NewReader("")
	text := strings.Repeat("x", 1<<20)
	req, err := http.NewRequest("PUT", "http://example.com/", struct{ io.Reader }{source})
	require.NoError(t, err)
	for _, policy := range []Policy{{}, {Deadline: time.Hour, AttemptTimeout: time.Minute}} {
		transport := &Transport{Base: base, Policy: policy}
		put := func() {
			source.Reset(text)
			if _, err := transport.RoundTrip(req); err != nil {
				t.Error(err)
			}
		}
		// The garbage collector may empty the pool.
		assert.InDelta(t, 3, testing.AllocsPerRun(200, put), 1)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 200 {
			put()
		}
		runtime.ReadMemStats(&after)
		assert.Less(t, (after.TotalAlloc-before.TotalAlloc)/200, uint64(2048), "bytes")
	}
}

// A host in trouble costs requests to other hosts nothing, even if they share a
// stripe of the table.
//
//retrip:promise P16
func TestAllocations_ManyInTrouble(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	base := &allocBase{statuses: []int{503}, body: foreignBody{}}
	transport := &Transport{Base: base, Policy: Policy{Backoff: Backoff{Base: Off}}}
	get := func(host string) {
		drop(t, transport, must(http.NewRequest("GET", "http://"+host, nil)))
	}
	const troubled = 128 // two for each stripe of the table, on average
	for i := range troubled {
		get("troubled-" + string(rune('a'+i%26)) + strings.Repeat("x", i))
	}
	require.Len(t, transport.HostStates(), troubled)
	base.statuses = []int{200}
	req := must(http.NewRequest("GET", "http://example.com/", nil))
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			return
		}
		resp.Body.Close()
	}))
}

// A goroutine that makes one request, and waits for its retry, has the small
// stack with which bare net/http waits for the response, with or without
// timeouts. A few hundred bytes more on the way to the wait would double it, as
// does a body of net/http that is drained. The heap has a timer in addition, but
// neither the response nor the attempt.
//
//retrip:promise P16
func TestWaiting_Small(t *testing.T) {
	if testenv.Race || testing.CoverMode() != "" {
		t.Skip("instrumented code needs larger frames")
	}
	bareStack, bareHeap := sizeOfRequests(t, testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		<-req.Context().Done()
		return nil, req.Context().Err()
	}))
	failing := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Body: io.NopCloser(strings.NewReader("later")), Request: req}, nil
	})
	for name, policy := range map[string]Policy{"plain": {}, "timeouts": {Deadline: 24 * time.Hour, AttemptTimeout: time.Hour}, "bodies": {Resume: 24 * time.Hour, BodyIdleTimeout: time.Hour}} {
		policy.Backoff, policy.Budget = Backoff{Base: time.Hour, Cap: time.Hour, Jitter: NoJitter}, Off
		stack, heap := sizeOfRequests(t, &Transport{Base: failing, Policy: policy, Metrics: &Metrics{}})
		assert.Less(t, stack, bareStack+2048, name)
		assert.Less(t, heap, bareHeap+800, "%s: no attempt is kept", name)
	}
}

// The functions of this library on the stack of a request that waits, the deepest first:
// each costs every waiting request its frame, so another one must be worth that.
func TestWaiting_Chain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "GET", "http://example.com/", nil)
		require.NoError(t, err)
		base := testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED })
		go func() {
			_, _ = (&Transport{Base: base, Policy: Policy{Backoff: Backoff{Base: time.Hour, Cap: time.Hour}}}).RoundTrip(req)
		}()
		synctest.Wait()
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		var chain []string
		for goroutine := range strings.SplitSeq(string(stacks), "\n\n") {
			if !strings.Contains(goroutine, "caller.Sleep(") {
				continue
			}
			for _, m := range regexp.MustCompile(`(?m)^\S+/internal/(.+)\(`).FindAllStringSubmatch(goroutine, -1) {
				chain = append(chain, m[1])
			}
		}
		assert.Equal(t, []string{"caller.Sleep", "exchange.(*exchange).wait", "exchange.(*exchange).run", "exchange.begin", "exchange.Do"}, chain)
		cancel()
		synctest.Wait()
	})
}

// A body that waits for its turn costs its reader's goroutine a larger stack, and less
// than 2 KiB besides.
//
//retrip:promise P20
func TestWaiting_SmallBodies(t *testing.T) {
	if testenv.Race || testing.CoverMode() != "" {
		t.Skip("instrumented code needs larger frames")
	}
	base := func(read func(context.Context) error) http.RoundTripper {
		header := http.Header{"Etag": {`"a"`}}
		return testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Header.Get("Range") != "" {
				return nil, syscall.ECONNREFUSED
			}
			body := io.MultiReader(strings.NewReader("a"), readerFunc(func([]byte) (int, error) { return 0, read(req.Context()) }))
			return &http.Response{StatusCode: 200, Header: header, ContentLength: 2, Body: io.NopCloser(body), Request: req}, nil
		})
	}
	bareStack, bareHeap := sizeOfRequests(t, base(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }))
	policy := Policy{Resume: 24 * time.Hour, Backoff: Backoff{Base: time.Nanosecond, Cap: time.Nanosecond}, MaxAttempts: 2}
	stack, heap := sizeOfRequests(t, &Transport{Base: base(func(context.Context) error { return syscall.ECONNRESET }), Policy: policy})
	t.Logf("stack %d, bare %d; heap %d, bare %d", stack, bareStack, heap, bareHeap)
	assert.LessOrEqual(t, stack, bareStack+5120)
	assert.Less(t, heap, bareHeap+2048)
}

// sizeOfRequests returns the bytes of stack and heap per request, while many
// wait.
func sizeOfRequests(t *testing.T, transport http.RoundTripper) (stack, heap int) {
	// With two processors, as many goroutines as chance wills run beside the requests, and
	// leave their stacks.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := &http.Client{Transport: transport}
		list := make([]*http.Request, 2000)
		for i := range list {
			var err error
			list[i], err = http.NewRequestWithContext(ctx, "GET", "http://example.com/", nil)
			require.NoError(t, err)
		}
		var before, after runtime.MemStats
		for range 3 { // what earlier tests have left in pools outlives one
			runtime.GC()
		}
		runtime.ReadMemStats(&before)
		for _, req := range list {
			go func() {
				if resp, err := client.Do(req); err == nil {
					_, _ = resp.Body.Read(make([]byte, 1))
					_, _ = resp.Body.Read(make([]byte, 1))
				}
			}()
		}
		synctest.Wait()
		runtime.ReadMemStats(&after)
		stack = int(after.StackInuse-before.StackInuse) / len(list)
		runtime.GC()
		runtime.ReadMemStats(&after)
		heap = int(after.HeapAlloc-before.HeapAlloc) / len(list)
		runtime.KeepAlive(list)
		cancel()
		synctest.Wait()
	})
	return stack, heap
}

// The context of an attempt is of retrip's own type. If a base derives further
// contexts from it, as net/http does, that must not need a goroutine, and the
// caller's hooks must stay visible.
//
//retrip:promise P4 P13
func TestAttempt_IsAnOrdinaryContext(t *testing.T) {
	type key struct{}
	var asked []string
	base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancelCause(req.Context())
		defer cancel(nil)
		ctx, stop := context.WithTimeout(context.WithValue(ctx, key{}, 2), time.Hour)
		defer stop()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before)
		assert.Equal(t, 1, req.Context().Value(key{}))
		httptrace.ContextClientTrace(ctx).GetConn("example.com:80")
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: req}, nil
	})
	transport := &Transport{Base: base, Policy: Policy{Deadline: time.Hour, AttemptTimeout: time.Minute}}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
	defer cancel()
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(host string) { asked = append(asked, host) }})
	req := must(http.NewRequestWithContext(ctx, "POST", "http://example.com/", nil))
	before := runtime.NumGoroutine()
	drop(t, transport, req)
	assert.LessOrEqual(t, runtime.NumGoroutine(), before)
	assert.Equal(t, []string{"example.com:80"}, asked)
}

func TestMain(m *testing.M) { testenv.RareGC(m) }

type (
	readerFunc       = testenv.Reader
	roundTripperFunc = testenv.RoundTripper
)

var (
	drop = testenv.Drop
	try  = testenv.Try
)

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// must returns v. It panics if err isn't nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// resolved returns the rules of p as Transport.Policy.
func resolved(t testing.TB, p Policy) *rules {
	t.Helper()
	r := &rules{path: "Policy"}
	require.NoError(t, r.resolve(&p, &defaults))
	return r
}
