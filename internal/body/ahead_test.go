// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// piece is a part of a body that arrives after a pause.
type piece struct {
	pause time.Duration
	text  string
}

// pieces serves the pieces of a body, each in a packet of its own, with the
// announced length if it isn't negative, and compressed if the client takes
// that.
func pieces(kind string, length int, parts []piece) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", kind)
		if length >= 0 {
			w.Header().Set("Content-Length", strconv.Itoa(length))
		}
		var out io.Writer = w
		flush := func() { play.Flush(w) }
		if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && length < 0 {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			defer z.Close()
			out, flush = z, func() { _ = z.Flush(); play.Flush(w) }
		}
		flush()
		for _, p := range parts {
			select {
			case <-time.After(p.pause):
			case <-r.Context().Done():
				return
			}
			_, _ = io.WriteString(out, p.text)
			flush()
		}
	}
}

func textOf(parts []piece) (text string) {
	for _, p := range parts {
		text += p.text
	}
	return text
}

// client makes requests to a server of pieces.
type client struct {
	*testing.T
	seen *atomic.Int32
	url  string
	base *http.Transport
}

// get makes a request with a policy that begins with play.Steady.
func (c client) get(change func(*retrip.Policy)) *http.Response {
	c.Helper()
	return testenv.Do(c, &retrip.Transport{Base: c.base, Policy: play.With(change)}, play.MustRequest(c, "GET", c.url, nil))
}

// eachWay runs f with a client of a server of the pieces, over every protocol, and
// also compressed if no length is announced.
func eachWay(t *testing.T, name, kind string, length int, parts []piece, f func(c client)) {
	for _, proto := range play.Protos {
		for _, plain := range []bool{true, false} {
			if !plain && length >= 0 {
				continue
			}
			play.Bubble(t, fmt.Sprintf("%s/%s/plain %v", name, proto, plain), func(t *testing.T) {
				serve, seen := play.Flaky(0, 0, pieces(kind, length, parts))
				s := memhttp.NewServer(t, proto, serve)
				base := s.Transport()
				base.DisableCompression = plain
				defer base.CloseIdleConnections()
				f(client{t, seen, s.URL, base})
			})
		}
	}
}

// peek returns a Classify that passes the first 512 bytes to look.
func peek(look func(start string)) func(*http.Request, *http.Response, error) retrip.Verdict {
	return func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		start, _ := retrip.Peek(resp, 512)
		look(string(start))
		return retrip.ByRule
	}
}

// WholeBody waits for its bytes and for nothing after them.
//
//retrip:promise P11 P20
func TestWholeBody_WaitsForItsBytesOnly(t *testing.T) {
	const limit = 64 << 10
	full, short := strings.Repeat("x", limit), strings.Repeat("x", 100)
	for name, tt := range map[string]struct {
		length int
		parts  []piece
	}{
		"as many":            {-1, []piece{{0, full}, {time.Hour, "rest"}}},
		"as many, announced": {limit, []piece{{0, full}, {time.Hour, ""}}},
		"more":               {-1, []piece{{0, full + "more"}, {time.Hour, "rest"}}},
		"more, announced":    {limit + 4, []piece{{0, full}, {time.Hour, "rest"}}},
		"fewer, announced":   {100, []piece{{0, short}, {time.Hour, ""}}},
		"fewer":              {-1, []piece{{0, short}}},
		"in halves":          {-1, []piece{{0, full[:limit/2]}, {200 * time.Millisecond, full[limit/2:]}, {time.Hour, "rest"}}},
	} {
		eachWay(t, name, "application/json", tt.length, tt.parts, func(c client) {
			began := time.Now()
			resp := c.get(func(p *retrip.Policy) { p.WholeBody, p.AttemptTimeout = limit, time.Second })
			assert.LessOrEqual(c, time.Since(began), 200*time.Millisecond)
			assert.Equal(c, textOf(tt.parts), play.Finish(c, resp))
			assert.EqualValues(c, 1, c.seen.Load())
		})
	}
}

// Peek returns what has arrived. It waits longer for an announced length than for
// a stream, and the reader gets every byte in any case.
//
//retrip:promise P11 P20
func TestPeek_Arrives(t *testing.T) {
	const event, half = "event: error\ndata: overloaded\n\n", `{"error": "over`
	const ms = time.Millisecond
	const events, object = "text/event-stream", "application/json"
	x := func(n int) string { return strings.Repeat("x", n) }
	for name, tt := range map[string]struct {
		kind   string
		length int
		parts  []piece
		want   string
		at     time.Duration
	}{
		"one event, then a pause":     {events, -1, []piece{{0, event}, {time.Hour, "later"}}, event, 100 * ms},
		"a late event":                {events, -1, []piece{{300 * ms, event}, {time.Hour, "later"}}, event, 400 * ms},
		"two events":                  {events, -1, []piece{{0, event}, {50 * ms, event}, {time.Hour, "later"}}, event + event, 100 * ms},
		"events without end":          {events, -1, []piece{{0, "1"}, {40 * ms, "2"}, {40 * ms, "3"}, {40 * ms, "4"}, {40 * ms, "5"}}, "123", 100 * ms},
		"many bytes":                  {events, -1, []piece{{0, x(5000)}, {time.Hour, "later"}}, x(512), 0},
		"512 bytes in two":            {events, -1, []piece{{0, x(300)}, {30 * ms, x(300)}, {time.Hour, ""}}, x(512), 30 * ms},
		"halves":                      {object, -1, []piece{{0, half}, {60 * ms, `loaded"}`}}, half + `loaded"}`, 60 * ms},
		"halves far apart":            {object, -1, []piece{{0, half}, {200 * ms, `loaded"}`}}, half, 100 * ms},
		"halves far apart, announced": {object, 23, []piece{{0, half}, {200 * ms, `loaded"}`}}, half + `loaded"}`, 200 * ms},
		"at once":                     {object, -1, []piece{{0, half}}, half, 0},
		"at once, announced":          {object, 15, []piece{{0, half}}, half, 0},
		"announced and more":          {object, 5015, []piece{{0, half}, {900 * ms, x(5000)}}, half + x(497), 900 * ms},
		"nothing":                     {object, -1, nil, "", 0},
	} {
		for setting, set := range map[string]func(p *retrip.Policy){
			"nothing set":     func(*retrip.Policy) {},
			"AttemptTimeout":  func(p *retrip.Policy) { p.AttemptTimeout = time.Second },
			"BodyIdleTimeout": func(p *retrip.Policy) { p.BodyIdleTimeout = 2 * time.Hour },
			"all": func(p *retrip.Policy) {
				p.AttemptTimeout, p.BodyIdleTimeout, p.Resume, p.WholeBody = time.Second, 2*time.Hour, 24*time.Hour, 64<<10
			},
		} {
			if setting == "all" && tt.kind != events {
				continue // WholeBody reads it first
			}
			eachWay(t, name+"/"+setting, tt.kind, tt.length, tt.parts, func(c client) {
				began := time.Now()
				resp := c.get(func(p *retrip.Policy) {
					set(p)
					p.Classify = func(_ *http.Request, resp *http.Response, err error) retrip.Verdict {
						require.NoError(c, err)
						start, err := retrip.Peek(resp, 512)
						assert.NoError(c, err)
						assert.Equal(c, tt.want, string(start))
						assert.Equal(c, tt.at, time.Since(began))
						return retrip.ByRule
					}
				})
				assert.Equal(c, tt.at, time.Since(began))
				assert.Equal(c, textOf(tt.parts), play.Finish(c, resp))
				assert.EqualValues(c, 1, c.seen.Load())
			})
		}
	}
}

// A reader that comes late to a stream finds no stall: time between Reads doesn't
// count, though a Read is already waiting. One that waits finds it.
//
//retrip:promise P20
func TestPeek_IdleReader(t *testing.T) {
	for name, tt := range map[string]struct {
		pause time.Duration // of the server
		late  time.Duration // of the reader
		stall bool
	}{
		"reader is late":  {5 * time.Second, 6 * time.Second, false},
		"reader waits":    {5 * time.Second, 0, true},
		"late, and waits": {30 * time.Second, 10 * time.Second, true},
		"soon enough":     {10500 * time.Millisecond, 10 * time.Second, false},
	} {
		eachWay(t, name, "text/event-stream", -1, []piece{{0, "first"}, {tt.pause, "second"}}, func(c client) {
			resp := c.get(func(p *retrip.Policy) { p.BodyIdleTimeout, p.Classify = time.Second, peek(func(string) {}) })
			defer resp.Body.Close()
			play.LetPass(tt.late)
			began := time.Now()
			got, err := io.ReadAll(resp.Body)
			if tt.stall {
				assert.ErrorContains(c, err, "BodyIdleTimeout")
				assert.Equal(c, "first", string(got))
				assert.LessOrEqual(c, time.Since(began), 1500*time.Millisecond)
				return
			}
			assert.NoError(c, err)
			assert.Equal(c, "firstsecond", string(got))
		})
	}
}

// While a Read that Peek has begun is in progress, the caller may look at the
// trailers that the response announces, as httputil.ReverseProxy does. It finds
// all of them at the end of the body.
//
//retrip:promise P1 P20
func TestPeek_Trailers(t *testing.T) {
	for setting, set := range map[string]func(p *retrip.Policy){
		"nothing set":    func(*retrip.Policy) {},
		"AttemptTimeout": func(p *retrip.Policy) { p.AttemptTimeout = time.Second },
		"Resume":         func(p *retrip.Policy) { p.Resume = time.Minute },
	} {
		for _, announced := range []bool{true, false} {
			for _, proto := range play.Protos {
				play.Bubble(t, fmt.Sprintf("%s/announced %v/%s", setting, announced, proto), func(t *testing.T) {
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
						if announced {
							w.Header().Set("Trailer", "Sum")
						}
						_, _ = io.WriteString(w, "first")
						play.Flush(w)
						play.LetPass(300 * time.Millisecond)
						_, _ = io.WriteString(w, "second")
						w.Header().Set("Sum", "42")
						w.Header().Set(http.TrailerPrefix+"Sum", "42")
					}))
					c := client{t, nil, s.URL, s.Transport()}
					defer c.base.CloseIdleConnections()
					resp := c.get(func(p *retrip.Policy) {
						set(p)
						p.Classify = peek(func(start string) { assert.Equal(t, "first", start) })
					})
					for name := range resp.Trailer {
						assert.True(t, announced, name)
					}
					play.LetPass(time.Second)
					assert.Equal(t, "firstsecond", play.Finish(t, resp))
					assert.Equal(t, "42", resp.Trailer.Get("Sum"))
				})
			}
		}
	}
}
