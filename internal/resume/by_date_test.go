// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// change makes another body of the data of a response.
type change = func(ctx context.Context, data []byte) io.Reader

// dated serves a file of the year 1999, without ETag unless it has one. The bodies of its responses
// are changed as bodies says, and must all be closed.
type dated struct {
	data   []byte
	etag   string
	asked  []string
	bodies []change
	open   atomic.Int32
}

func (d *dated) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := serveFile(req, d.data, d.etag, time.Date(1999, 6, 1, 0, 0, 0, 0, time.UTC), time.Now())
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var r io.Reader = bytes.NewReader(data)
	if n := len(d.asked); n < len(d.bodies) {
		r = d.bodies[n](req.Context(), data)
	}
	d.asked = append(d.asked, req.Header.Get("Range"))
	d.open.Add(1)
	resp.Body = &counted{r, &d.open}
	return resp, nil
}

// serveFile responds as http.FileServer does, at the time now.
func serveFile(req *http.Request, data []byte, etag string, mtime, now time.Time) *http.Response {
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/octet-stream")
	if etag != "" {
		rec.Header().Set("ETag", etag)
	}
	http.ServeContent(rec, req, "", mtime, bytes.NewReader(data))
	resp := rec.Result()
	resp.Header.Set("Date", now.UTC().Format(http.TimeFormat))
	resp.ContentLength, _ = strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64)
	return resp
}

type counted struct {
	io.Reader
	open *atomic.Int32
}

func (c *counted) Close() error { c.open.Add(-1); return nil }

// begin begins a download.
func begin(t *testing.T, base http.RoundTripper, p retrip.Policy, told func(retrip.Event)) *http.Response {
	t.Helper()
	p.Resume, p.Budget = time.Minute, retrip.Off
	return testenv.Do(t, &retrip.Transport{Base: base, Policy: p, Trace: &retrip.Trace{Resume: told}}, play.Request(t, "GET", nil))
}

// download is begin for a whole file.
func download(t *testing.T, base http.RoundTripper, p retrip.Policy, told func(retrip.Event)) ([]byte, error) {
	t.Helper()
	resp := begin(t, base, p, told)
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	return got, err
}

// cut ends after n bytes.
func cut(n int) change { return cutBy(n, io.ErrUnexpectedEOF) }

// cutBy ends with err after n bytes.
func cutBy(n int, err error) change {
	return func(_ context.Context, data []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(err))
	}
}

// stall delivers n bytes and no more.
func stall(n int) change {
	return func(ctx context.Context, data []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(data[:n]), testenv.Reader(func([]byte) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}))
	}
}

// other delivers other bytes from the offset n on.
func other(n int) change {
	return func(_ context.Context, data []byte) io.Reader {
		data = bytes.Clone(data)
		for i := range data[n:] {
			data[n+i]++
		}
		return bytes.NewReader(data)
	}
}

// TestByDate continues a body whose only validator is a date. What goes wrong
// among the bytes that are asked for twice is a break like any other, and bytes
// that differ end the body.
//
//retrip:promise P20
func TestByDate(t *testing.T) {
	data := make([]byte, 20_000)
	for i := range data {
		data[i] = byte(i * i >> 3)
	}
	type bodies = []change
	twice := []string{"", "bytes=5904-19999", "bytes=5904-19999"}
	once := twice[:2]
	impossible := testenv.Reader(func([]byte) (int, error) { return -1, nil })
	for _, c := range []struct {
		name   string
		bodies bodies
		asked  []string
		got    int    // number of bytes, if not all
		text   string // end of the error
		told   []string
	}{
		{name: "breaks once", bodies: bodies{cut(10_000)}, asked: once, told: []string{"continued"}},
		{name: "before the first byte", bodies: bodies{cut(0)}, asked: []string{"", "bytes=0-19999"}, told: []string{"continued"}},
		{name: "after one byte", bodies: bodies{cut(1)}, asked: []string{"", "bytes=0-19999"}, told: []string{"continued"}},
		{name: "before the last byte", bodies: bodies{cut(19_999)}, asked: []string{"", "bytes=15903-19999"}, told: []string{"continued"}},
		{name: "breaks among what is repeated", bodies: bodies{cut(10_000), cut(100)}, asked: twice, told: []string{"continued"}},
		{name: "breaks after what is repeated", bodies: bodies{cut(10_000), cut(4096)}, asked: twice, told: []string{"continued", "continued"}},
		{name: "stalls among what is repeated", bodies: bodies{cut(10_000), stall(100)}, asked: twice, told: []string{"continued"}},
		{name: "never gets beyond what is repeated", bodies: append(bodies{cut(10_000), cut(100), cut(4095)}, slices.Repeat(bodies{cut(0)}, 40)...),
			got: 10_000, text: "byte 10000: no_progress, ", told: []string{"no_progress"}},
		{name: "other bytes", bodies: bodies{cut(10_000), other(0)}, asked: once,
			got: 10_000, text: "byte 10000: changed, in a response with status 206", told: []string{"changed"}},
		{name: "another byte, the last of those", bodies: bodies{cut(10_000), other(4095)}, asked: once,
			got: 10_000, text: "byte 10000: changed, in a response with status 206", told: []string{"changed"}},
		{name: "Reads of impossible length", bodies: bodies{cut(10_000), func(context.Context, []byte) io.Reader { return impossible }}, asked: once, got: 10_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dated{data: data, bodies: c.bodies}
				var told []string
				tell := func(e retrip.Event) { told = append(told, string(e.Reason)) }
				got, err := download(t, d, retrip.Policy{MaxAttempts: 10, BodyIdleTimeout: time.Second}, tell)
				if c.asked != nil {
					assert.Equal(t, c.asked, d.asked)
				}
				assert.Equal(t, c.told, told)
				assert.Zero(t, d.open.Load(), "bodies are open")
				if c.got == 0 {
					require.NoError(t, err)
					assert.True(t, bytes.Equal(data, got))
					return
				}
				require.Error(t, err)
				assert.True(t, bytes.Equal(data[:c.got], got))
				if c.text != "" {
					require.ErrorIs(t, err, io.ErrUnexpectedEOF)
					assert.ErrorContains(t, err, "retrip: the response body can't be continued at "+c.text)
				}
			})
		})
	}
}

// The error of a body wraps how it broke, and how each continuation since then
// ended without a byte.
//
//retrip:promise P17 P20
func TestByDate_EveryBreak(t *testing.T) {
	first, second, third, before := errors.New("first"), errors.New("second"), errors.New("third"), errors.New("before")
	for etag, repeated := range map[string]int{"": 4096, `"a"`: 0} {
		for n := 0; n <= repeated; n += 2048 {
			for most, want := range map[int][]error{2: {first, second}, 3: {first, second, third}, 10: {first, second, third}} {
				synctest.Test(t, func(t *testing.T) {
					d := &dated{data: make([]byte, 20_000), etag: etag}
					d.bodies = append([]change{cutBy(10_000, first), cutBy(n, second)}, slices.Repeat([]change{cutBy(n, third)}, 40)...)
					if most == 10 {
						d.bodies[0] = cutBy(repeated+1, first)
						d.bodies = append([]change{cutBy(9_999, before)}, d.bodies...)
					}
					got, err := download(t, d, retrip.Policy{MaxAttempts: most}, nil)
					assert.Len(t, got, 10_000)
					for _, e := range want {
						assert.ErrorIs(t, err, e, "%s %d of %d", etag, n, most)
						assert.Equal(t, 1, strings.Count(err.Error(), e.Error()), err)
					}
					assert.NotErrorIs(t, err, before)
				})
			}
		}
	}
}

// What retrip itself asks for twice doesn't count as waste of the server, even if
// it is more than the file in all.
//
//retrip:promise P20
func TestByDate_ManyBreaks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &dated{data: make([]byte, 20_000), bodies: append([]change{cut(10_000)}, slices.Repeat([]change{cut(4097)}, 7)...)}
		got, err := download(t, d, retrip.Policy{MaxAttempts: 10}, nil)
		require.NoError(t, err)
		assert.Len(t, got, 20_000)
		assert.Len(t, d.asked, 9)
	})
}

// Close ends a continuation that hangs among the bytes that are asked for twice,
// and a panic there leaves nothing open.
//
//retrip:promise P20
func TestByDate_CloseAndPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		boom := errors.New("boom")
		for _, panics := range []bool{false, true} {
			d := &dated{data: make([]byte, 20_000), bodies: []change{cut(10_000), stall(100)}}
			if panics {
				d.bodies[1] = func(context.Context, []byte) io.Reader {
					return testenv.Reader(func([]byte) (int, error) { panic(boom) })
				}
			}
			resp := begin(t, d, retrip.Policy{}, nil)
			if panics {
				assert.PanicsWithValue(t, boom, func() { _, _ = io.ReadAll(resp.Body) })
			} else {
				time.AfterFunc(time.Minute, func() { assert.NoError(t, resp.Body.Close()) })
				_, err := io.ReadAll(resp.Body)
				assert.Equal(t, http.ErrBodyReadAfterClose, err)
			}
			require.NoError(t, resp.Body.Close())
			synctest.Wait()
			assert.LessOrEqual(t, d.open.Load(), int32(0), "panics=%t", panics)
		}
	})
}
