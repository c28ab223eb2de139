// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
)

// dated serves a file of the year 1999, without ETag unless it has one. The bodies of its responses
// are changed as bodies says, and must all be closed.
type dated struct {
	data   []byte
	etag   string
	asked  []string
	bodies []func(ctx context.Context, data []byte) io.Reader
	open   atomic.Int32
}

func (d *dated) RoundTrip(req *http.Request) (*http.Response, error) {
	rec := httptest.NewRecorder()
	rec.Header().Set("Content-Type", "application/octet-stream")
	if d.etag != "" {
		rec.Header().Set("ETag", d.etag)
	}
	http.ServeContent(rec, req, "", time.Date(1999, 6, 1, 0, 0, 0, 0, time.UTC), bytes.NewReader(d.data))
	resp := rec.Result()
	resp.Header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	resp.ContentLength, _ = strconv.ParseInt(resp.Header.Get("Content-Length"), 10, 64)
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

type counted struct {
	io.Reader
	open *atomic.Int32
}

func (c *counted) Close() error { c.open.Add(-1); return nil }

type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// cut ends after n bytes.
func cut(n int) func(context.Context, []byte) io.Reader { return cutBy(n, io.ErrUnexpectedEOF) }

// cutBy ends with err after n bytes.
func cutBy(n int, err error) func(context.Context, []byte) io.Reader {
	return func(_ context.Context, data []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(err))
	}
}

// stall delivers n bytes and no more.
func stall(n int) func(context.Context, []byte) io.Reader {
	return func(ctx context.Context, data []byte) io.Reader {
		return io.MultiReader(bytes.NewReader(data[:n]), readFunc(func([]byte) (int, error) {
			<-ctx.Done()
			return 0, ctx.Err()
		}))
	}
}

// other delivers other bytes from the offset n on.
func other(n int) func(context.Context, []byte) io.Reader {
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
	type bodies = []func(context.Context, []byte) io.Reader
	for _, c := range []struct {
		name   string
		bodies bodies
		asked  []string
		got    int    // number of bytes, if not all
		text   string // end of the error
		told   []string
	}{
		{name: "breaks once", bodies: bodies{cut(10_000)}, asked: []string{"", "bytes=5904-19999"}, told: []string{"continued 10000"}},
		{name: "before the first byte", bodies: bodies{cut(0)}, asked: []string{"", "bytes=0-19999"}, told: []string{"continued 0"}},
		{name: "after one byte", bodies: bodies{cut(1)}, asked: []string{"", "bytes=0-19999"}, told: []string{"continued 1"}},
		{name: "before the last byte", bodies: bodies{cut(19_999)}, asked: []string{"", "bytes=15903-19999"}, told: []string{"continued 19999"}},
		{name: "breaks among what is repeated", bodies: bodies{cut(10_000), cut(100)}, asked: []string{"", "bytes=5904-19999", "bytes=5904-19999"}, told: []string{"continued 10000"}},
		{name: "breaks after what is repeated", bodies: bodies{cut(10_000), cut(4096)}, asked: []string{"", "bytes=5904-19999", "bytes=5904-19999"}, told: []string{"continued 10000", "continued 10000"}},
		{name: "stalls among what is repeated", bodies: bodies{cut(10_000), stall(100)}, asked: []string{"", "bytes=5904-19999", "bytes=5904-19999"}, told: []string{"continued 10000"}},
		{name: "never gets beyond what is repeated", bodies: append(bodies{cut(10_000), cut(100), cut(4095)}, slices.Repeat(bodies{cut(0)}, 40)...), got: 10_000, text: "byte 10000: no_progress, ", told: []string{"no_progress 10000"}},
		{name: "other bytes", bodies: bodies{cut(10_000), other(0)}, asked: []string{"", "bytes=5904-19999"},
			got: 10_000, text: "byte 10000: changed, in a response with status 206", told: []string{"changed 10000"}},
		{name: "another byte, the last of those", bodies: bodies{cut(10_000), other(4095)}, asked: []string{"", "bytes=5904-19999"},
			got: 10_000, text: "byte 10000: changed, in a response with status 206", told: []string{"changed 10000"}},
		{name: "Reads of impossible length", bodies: bodies{cut(10_000), func(context.Context, []byte) io.Reader { return readFunc(func([]byte) (int, error) { return -1, nil }) }},
			asked: []string{"", "bytes=5904-19999"}, got: 10_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &dated{data: data, bodies: c.bodies}
				var told []string
				tr := &retrip.Transport{Base: d, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: time.Second, MaxAttempts: 10, Budget: retrip.Off},
					Trace: &retrip.Trace{Resume: func(e retrip.Event) { told = append(told, fmt.Sprint(e.Reason, " ", e.Offset)) }}}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
				require.NoError(t, err)
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, resp.Body.Close())
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
					d.bodies = []func(context.Context, []byte) io.Reader{cutBy(10_000, first), cutBy(n, second)}
					d.bodies = append(d.bodies, slices.Repeat([]func(context.Context, []byte) io.Reader{cutBy(n, third)}, 40)...)
					if most == 10 {
						d.bodies = append([]func(context.Context, []byte) io.Reader{cutBy(9_999, before)}, d.bodies...)
						d.bodies[1] = cutBy(repeated+1, first)
					}
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
					require.NoError(t, err)
					resp, err := (&retrip.Transport{Base: d, Policy: retrip.Policy{Resume: time.Minute, MaxAttempts: most, Budget: retrip.Off}}).RoundTrip(req)
					require.NoError(t, err)
					got, err := io.ReadAll(resp.Body)
					require.NoError(t, resp.Body.Close())
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
		d := &dated{data: make([]byte, 20_000), bodies: []func(context.Context, []byte) io.Reader{cut(10_000)}}
		for range 7 {
			d.bodies = append(d.bodies, cut(4097))
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		resp, err := (&retrip.Transport{Base: d, Policy: retrip.Policy{Resume: time.Minute, MaxAttempts: 10, Budget: retrip.Off}}).RoundTrip(req)
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, resp.Body.Close())
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
			d := &dated{data: make([]byte, 20_000), bodies: []func(context.Context, []byte) io.Reader{cut(10_000), stall(100)}}
			if panics {
				d.bodies[1] = func(context.Context, []byte) io.Reader { return readFunc(func([]byte) (int, error) { panic(boom) }) }
			}
			req, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
			require.NoError(t, err)
			resp, err := (&retrip.Transport{Base: d, Policy: retrip.Policy{Resume: time.Minute}}).RoundTrip(req)
			require.NoError(t, err)
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
