// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// These tests show what a caller of package retrip and a server see, through the
// exported API alone. What the root package decides by itself is tested beside it.

package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

var (
	bubble  = testenv.Bubble
	do      = testenv.Do
	drop    = testenv.Drop
	try     = testenv.Try
	counted = play.Counted
	gather  = play.Gather
)

// continued is the result of a broken body whose rest has come.
const continued retrip.Reason = "continued"

// readAll reads and closes the body of resp.
func readAll(t *testing.T, resp *http.Response) ([]byte, error) {
	t.Helper()
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	return got, err
}

// fetch reads the whole body of a GET. headers are names and values.
func fetch(t *testing.T, tr *retrip.Transport, headers ...string) ([]byte, error) {
	t.Helper()
	return fetchIn(t, t.Context(), tr, headers...)
}

// getFrom makes a GET, whatever comes of it.
func getFrom(t *testing.T, rt http.RoundTripper, url string) {
	t.Helper()
	try(rt, play.MustRequest(t, http.MethodGet, url, nil).WithContext(t.Context()))
}

// fetchIn is fetch in a context.
func fetchIn(t *testing.T, ctx context.Context, tr *retrip.Transport, headers ...string) ([]byte, error) {
	t.Helper()
	req := play.MustRequest(t, http.MethodGet, "http://example.com/file", nil).WithContext(ctx)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	return readAll(t, do(t, tr, req))
}

// ending yields what r has, and then err. If err is nil, it stalls until ctx ends.
func ending(ctx context.Context, r io.Reader, err error) io.Reader {
	if err != nil {
		return io.MultiReader(r, iotest.ErrReader(err))
	}
	return io.MultiReader(r, testenv.Reader(func([]byte) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) }))
}

// sends answers with a body that has the given content and ends with err. If err is nil,
// the body stalls.
func sends(status int, content string, err error, lines ...string) play.Step {
	return answers(status, lines, func(ctx context.Context) io.Reader { return ending(ctx, strings.NewReader(content), err) })
}

// answers answers with a body that belongs to the context of its attempt.
func answers(status int, lines []string, body func(context.Context) io.Reader) play.Step {
	return func(req *http.Request) (*http.Response, error) {
		resp, err := play.Reply(status, lines...)(req)
		resp.ContentLength, resp.Body = -1, play.NewReply(body(req.Context()))
		return resp, err
	}
}

// closes returns how often each body of base has been closed.
func closes(base *play.Script) (times []int32) {
	for _, body := range base.Bodies {
		times = append(times, body.Closed.Load())
	}
	return times
}
