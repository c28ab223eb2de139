// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// store is a Base that serves one file like http.ServeContent, with changes. A request for
// the path /busy gets a 503 with the Retry-After that its header names.
type store struct {
	etag  string
	data  []byte
	parts []change // of the responses in order; later ones are honest
	again bool     // the last part is that of all later responses, too
	asks  []*http.Request
	given []*play.ReplyBody
}

// file is what most stores serve the beginning of.
var file = randomBytes(4<<20, 1)

func randomBytes(n int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 7))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// newStore returns a store of the first bytes of file.
func newStore(size int, parts ...change) *store {
	return &store{etag: `"a"`, data: file[:size], parts: parts}
}

func (s *store) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Path == "/busy" {
		return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": req.Header["Retry-After"]}, Body: http.NoBody}, nil
	}
	i := len(s.asks)
	s.asks = append(s.asks, req)
	rec := httptest.NewRecorder()
	rec.Header().Set("ETag", s.etag)
	rec.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(rec, req, "", time.Time{}, bytes.NewReader(s.data))
	resp := rec.Result()
	resp.Request = req
	if n, err := strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64); err == nil {
		resp.ContentLength = n
	}
	if s.again {
		i = min(i, len(s.parts)-1)
	}
	if i < len(s.parts) {
		s.parts[i](resp)
	}
	if resp.Body != nil && resp.Body != http.NoBody {
		s.given = append(s.given, play.NewReply(resp.Body))
		resp.Body = s.given[len(s.given)-1]
	}
	return resp, nil
}

// change changes the response of a store.
type change func(*http.Response)

func all(changes ...change) change {
	return func(resp *http.Response) {
		for _, change := range changes {
			change(resp)
		}
	}
}

// breaks ends the body with err after n bytes. If err is nil, the body stalls there.
func breaks(n int64, err error) change {
	return func(resp *http.Response) {
		resp.Body = io.NopCloser(ending(resp.Request.Context(), io.LimitReader(resp.Body, n), err))
	}
}

func cut(n int64) change    { return breaks(n, io.ErrUnexpectedEOF) }
func stall(n int64) change  { return breaks(n, nil) }
func length(n int64) change { return func(resp *http.Response) { resp.ContentLength = n } }
func code(status int) change {
	return func(resp *http.Response) { resp.StatusCode, resp.Status = status, strconv.Itoa(status) }
}
func set(name, value string) change {
	return func(resp *http.Response) { resp.Header.Set(name, value) }
}
func del(name string) change { return func(resp *http.Response) { resp.Header.Del(name) } }

// reads changes how the body is read.
func reads(through func(io.Reader) io.Reader) change {
	return func(resp *http.Response) { resp.Body = io.NopCloser(through(resp.Body)) }
}

// content replaces the body and its length.
func content(b []byte) change {
	return func(resp *http.Response) {
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	}
}

// answer replaces the response by one without a body, with lines of a header.
func answer(status int, lines ...string) change {
	return func(resp *http.Response) {
		with, _ := play.Reply(status, lines...)(nil)
		resp.StatusCode, resp.Header, resp.Body, resp.ContentLength = status, with.Header, http.NoBody, 0
	}
}

// part makes the response a 206 of all bytes of a file from an offset on.
func part(from, size int) change {
	return all(code(206), set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, size-1, size)), content(file[from:size]))
}

// whole makes the response a 200 of a file.
func whole(size int) change { return all(code(200), del("Content-Range"), content(file[:size])) }

// download is a body that a store serves and that breaks, and what must come of it.
type download struct {
	name     string
	policy   retrip.Policy // Resume is a minute if it is 0
	size     int           // of the file; 1000 if it is 0
	etag     string        // of the file; "a" in quotes if it is empty
	method   string
	ranged   string   // the Range of the request
	begins   int      // the offset at which the body begins
	ends     int      // the offset at which it ends, if that isn't the end of the file
	first    change   // of the first response; cut(500) if it is nil
	then     []change // of the next responses
	again    bool     // the last change is that of all later responses, too
	between  func(*testing.T, *retrip.Transport)
	deadline time.Duration // of the caller
	leaves   time.Duration // the caller cancels then

	want       retrip.Reason // the last result; empty if nothing breaks, or nobody is told
	told       []string      // offset and attempts of each result, if it isn't nil; the log has the offset
	counts     []string      // some of the metrics of the default policy
	text       string        // of the error, where it isn't the reason's
	err        error         // in the error; io.ErrUnexpectedEOF if it is nil and want is a reason
	got        int           // bytes of a body that isn't continued; 500 if it is 0, and none if it is negative
	asks       int           // requests, if it isn't 0
	most       int           // requests, if it isn't 0
	spared     int           // bytes, if it isn't 0; none if it is negative
	stalls     int           // if it is negative, each response stalls
	took, upTo time.Duration // at least, and at most if it isn't 0
}

// runDownloads reads the body of each row, with hooks and a log and without. The body must
// be the file, or begin as it does and end with an error that says how it broke and why it
// isn't continued. Metrics, hooks and log agree on that, and nothing stays open. Without
// hooks, the caller's context may never end.
func runDownloads(t *testing.T, rows []download) {
	for _, d := range rows {
		bubble(t, cmp.Or(d.name, string(d.want)), func(t *testing.T) {
			d.run(t, &retrip.Transport{})
			told := toldBodies{t: t}
			told.check(d, d.run(t, told.transport()))
		})
	}
}

func (d *download) run(t *testing.T, tr *retrip.Transport) *retrip.Transport {
	if d.first == nil {
		d.first = cut(500)
	}
	s := newStore(cmp.Or(d.size, 1000), append([]change{d.first}, d.then...)...)
	s.etag, s.again = cmp.Or(d.etag, s.etag), d.again
	tr.Base, tr.Metrics, tr.Policy = s, &retrip.Metrics{}, d.policy
	tr.Policy.Resume = cmp.Or(d.policy.Resume, time.Minute)
	ctx, cancel := context.WithCancel(context.Background())
	switch {
	case d.deadline > 0:
		ctx, cancel = context.WithTimeout(ctx, d.deadline)
	case d.leaves > 0:
		time.AfterFunc(d.leaves, cancel)
	case tr.Trace == nil:
		ctx = context.Background()
	}
	defer cancel()
	req := play.Must(http.NewRequestWithContext(retrip.WithTrace(ctx, tr.Trace), cmp.Or(d.method, http.MethodGet), "http://example.com/file", nil))
	req.Header.Set("X", "y")
	if d.ranged != "" {
		req.Header.Set("Range", d.ranged)
	}
	resp := do(t, tr, req)
	if d.between != nil {
		d.between(t, tr)
	}
	began := time.Now()
	got, err := readAll(t, resp)
	took := time.Since(began)

	want := s.data[d.begins:cmp.Or(d.ends, len(s.data))]
	reason, refused := "", d.want != "" && d.want != continued
	if refused {
		reason = fmt.Sprintf("; retrip: the response body can't be continued at byte %d: %s", d.begins+len(got), d.want)
	}
	if !refused && d.err == nil && d.text == "" {
		require.NoError(t, err)
		assert.True(t, bytes.Equal(want, got), "%d bytes", len(got))
	} else {
		if refused || d.err != nil {
			assert.ErrorIs(t, err, cmp.Or(d.err, io.ErrUnexpectedEOF))
		}
		require.ErrorContains(t, err, cmp.Or(d.text, reason))
		assert.True(t, bytes.HasPrefix(want, got), "another body")
		assert.Len(t, got, max(0, cmp.Or(d.got, 500)))
	}
	assert.Len(t, s.asks, cmp.Or(d.asks, len(s.asks)))
	assert.LessOrEqual(t, len(s.asks), cmp.Or(d.most, len(s.asks)))
	assert.GreaterOrEqual(t, took, d.took)
	assert.LessOrEqual(t, took, cmp.Or(d.upTo, took))
	for _, ask := range s.asks[1:] {
		assert.Equal(t, "y", ask.Header.Get("X"))
	}
	for i, body := range s.given {
		assert.EqualValues(t, 1, body.Closed.Load(), "Close of body %d", i)
	}
	d.checkMetrics(t, tr.Metrics, len(s.asks))
	return tr
}

func (d *download) checkMetrics(t *testing.T, metrics *retrip.Metrics, asks int) {
	m, stalls := gather(t, metrics)["default"], d.stalls
	if stalls < 0 {
		stalls = asks
	}
	assert.EqualValues(t, stalls, m["body_stalls_total"])
	if d.want != "" {
		assert.NotZero(t, m["body_resumes_total "+string(d.want)])
	}
	if d.spared != 0 {
		assert.EqualValues(t, max(0, d.spared), m["body_resumed_bytes_total"])
	}
	if d.between == nil {
		assert.EqualValues(t, asks, m["attempts_total"])
		assert.EqualValues(t, 1, m["requests_total"], "a request is counted once, when its headers arrive")
	}
	for _, line := range d.counts {
		assert.Contains(t, counted(t, metrics), line)
	}
}

// toldBodies is what hooks and log tell of bodies that broke.
type toldBodies struct {
	t      *testing.T
	events []retrip.Event
	log    strings.Builder
}

// transport returns a Transport whose hook and log are recorded. Its hook is also that of
// the request.
func (b *toldBodies) transport() *retrip.Transport {
	return &retrip.Transport{Logger: slog.New(slog.NewTextHandler(&b.log, nil)), Trace: &retrip.Trace{Resume: func(e retrip.Event) { b.events = append(b.events, e) }}}
}

func (b *toldBodies) check(d download, tr *retrip.Transport) {
	var told []string
	for i, e := range b.events {
		if i%2 == 0 {
			assert.Equal(b.t, e, b.events[i+1], "the Transport's hook and that of the request")
			continue
		}
		assert.Error(b.t, e.Err)
		assert.EqualValues(b.t, "default", e.Policy)
		assert.Equal(b.t, d.ranged, e.Request.Header.Get("Range"))
		told = append(told, fmt.Sprint(e.Attempt))
	}
	assert.EqualValues(b.t, len(told), gather(b.t, tr.Metrics)["default"]["body_resumes_total"])
	if d.want == "" {
		assert.Empty(b.t, told)
		return
	}
	require.NotEmpty(b.t, told)
	assert.Equal(b.t, d.want, b.events[len(b.events)-1].Reason)
	require.True(b.t, d.told == nil || len(told) == len(d.told), told)
	var offset string // of the first
	for i, want := range slices.Backward(d.told) {
		var attempts string
		offset, attempts, _ = strings.Cut(want, " ")
		assert.Equal(b.t, attempts, told[i])
	}
	first := b.events[0] // of later ones, the log may be silent
	assert.Contains(b.t, b.log.String(), fmt.Sprintf("level=INFO msg=\"retrip: response body broke\" method=%s url=http://example.com/file policy=default attempt=%d reason=%s error=%q offset=%s",
		first.Request.Method, first.Attempt, first.Reason, first.Err.Error(), offset))
}

// busy makes requests to the host of the body whose only retry fails, a second before the body
// breaks, or else its retry might wait for tokens; or, with a time that their 503 asks for,
// requests that aren't retried.
func busy(n int, after string) func(*testing.T, *retrip.Transport) {
	return func(t *testing.T, tr *retrip.Transport) {
		policy := retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}
		if after != "" {
			policy = retrip.Policy{MaxAttempts: 1, MaxWait: time.Minute}
		}
		for range n {
			req := play.Must(http.NewRequestWithContext(retrip.WithPolicy(t.Context(), policy), http.MethodGet, "http://example.com/busy", nil))
			if after != "" {
				req.Header.Set("Retry-After", after)
			}
			drop(t, tr, req)
		}
		if after == "" {
			time.Sleep(time.Second)
		}
	}
}

// outOf returns a Base that serves s until it has been asked n times, and then is base.
func outOf(s *store, n int, base func(*http.Request) (*http.Response, error)) http.RoundTripper {
	return testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		if len(s.asks) < n {
			return s.RoundTrip(req)
		}
		return base(req)
	})
}
