// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var bothHTTP1 = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS}

// Connections freeze, and requests get others: one by one, or together.
//
//retrip:promise P11
func TestFresh(t *testing.T) {
	nothing := func(*freshWorld) {}
	for _, row := range []struct {
		name   string
		protos []memhttp.Proto
		set    func(w *freshWorld)
		script string // see freshWorld.play
	}{
		// Earlier responses from a spare don't prove that it still works. One that is replaced keeps no
		// connection open. Over HTTP/1, net/http itself closes a frozen connection.
		{"frozen again", play.Protos, nothing, frozenAgain},
		{"ResponseHeaderTimeout of a plain attempt", play.Protos, func(w *freshWorld) {
			w.transport.Trace, w.transport.Policy.AttemptTimeout = nil, 0
			w.base.ResponseHeaderTimeout = time.Second
		}, frozenAgain},
		{"another scheme is registered", play.Protos, func(w *freshWorld) {
			w.base.RegisterProtocol("file", http.NewFileTransport(http.Dir(".")))
		}, frozenAgain},
		{"the TLS sessions of the base", []memhttp.Proto{memhttp.HTTP2}, func(w *freshWorld) {
			answers := 0
			w.base.TLSClientConfig.ClientSessionCache = tls.NewLRUClientSessionCache(0)
			w.handle = func(_ http.ResponseWriter, r *http.Request) {
				answers++
				assert.Equal(w.t, answers > 1, r.TLS.DidResume)
			}
		}, "warm freeze get attempts:2 dials:2"},
		// The spare may exceed it by one over HTTP/2.
		{"MaxConnsPerHost", play.Protos, func(w *freshWorld) { w.base.MaxConnsPerHost = 1 }, frozenAgain},

		{"the first connection freezes under its request", play.Protos, nothing, "freezes:1 get attempts:2 dials:2"},
		{"the first three do", play.Protos, nothing, "freezes:3 get attempts:4 dials:4"},
		{"the first is not kept", play.Protos, unkept, "freezes:1 get attempts:2 dials:2"},
		{"the first three are not kept", play.Protos, unkept, "freezes:3 get attempts:4 dials:4"},

		// A request doesn't try the dead ones of a pool one by one, unless the caller limits connections.
		{"a whole pool", bothHTTP1, slower, "pool:8 open:8 freeze get attempts:2 dials:9"},
		{"a whole pool, limited", bothHTTP1, func(w *freshWorld) { slower(w); w.base.MaxConnsPerHost = 8 }, "pool:8 open:8 freeze get fails attempts:4 dials:8"},

		// Once the base is known to be frozen, later requests begin with the spare, whatever their method, and
		// none waits, until the base delivers a response: here, when it has closed its connection.
		{"later requests", bothHTTP2, nothing, "warm freeze get attempts:2 many conns:2 freeze get attempts:2 many conns:3 freeze get attempts:2 many conns:4 " +
			"close-base 1s base conns:5 1m get attempts:1 conns:5 many conns:5"},
		// A POST isn't retried, but two that time out in a row are enough for the third. If the spare freezes
		// then, one is.
		{"later requests without a retry", bothHTTP2, nothing, "warm freeze post fails post fails post post post freeze post fails post post post post"},
		// A response of the spare at the beginning of an attempt doesn't prove that the spare still works.
		{"base and spare freeze", bothHTTP2, nothing, "warm freeze mark go 1s mark go 200ms freeze join took:1.1s attempts:4 dials:3"},
		// A retry after a response from the spare uses the spare again. Over HTTP/1, each retry has a
		// connection of its own.
		{"the spare fails", play.Protos, func(w *freshWorld) {
			answers := 0
			w.handle = func(rw http.ResponseWriter, r *http.Request) {
				switch answers++; answers {
				case 2:
					rw.WriteHeader(http.StatusServiceUnavailable)
				case 3:
					memhttp.RequestConn(r).Reset()
					panic(http.ErrAbortHandler)
				}
			}
		}, "warm freeze mark get took:1.7s attempts:4 1:dials:4 2:dials:3"},

		// Where connecting takes longer than a third of the attempt, the base makes the attempt, and a later one
		// finds the spare connected. A late answer costs no request, whatever becomes of the dial.
		{"frozen, a dial of 0.3 s", bothHTTP2, dialsIn(300 * time.Millisecond), "warm freeze get attempts:2 freeze get attempts:2 dials:3"},
		{"frozen, a dial of 0.6 s", bothHTTP2, dialsIn(600 * time.Millisecond), "warm freeze get attempts:3 freeze get attempts:3 dials:3"},
		{"frozen, a dial of 1.5 s", bothHTTP2, dialsIn(1500 * time.Millisecond), "warm freeze get attempts:3 freeze get attempts:3 dials:3"},
		{"frozen, a dial of 2 s", bothHTTP2, dialsIn(2 * time.Second), "warm freeze get attempts:4 freeze get attempts:4 dials:3"},
		{"a late answer, a dial of 2 s", bothHTTP2, lateOnce(dialsIn(2 * time.Second)), "warm get attempts:2 1m"},
		{"a late answer, the dial fails", bothHTTP2, lateOnce(func(w *freshWorld) {
			w.beforeDial(func(context.Context) error {
				if w.server.Listener.Dials() == 0 {
					return nil
				}
				return errors.New("connection refused")
			})
		}), "warm get attempts:2 dials:1"},

		// If others get responses, the base's connection works: a retry that begins later, or that waits, needs no other.
		{"others are answered before the retry", bothHTTP2, lateOnce(dialsIn(2 * time.Second)), "warm mark go 1.05s go join took:1.1s 1m dials:1"},
		{"others are answered while the retry waits", bothHTTP2, lateOnce(dialsIn(2 * time.Second)), "warm mark go 1.2s go join took:1.2s 1m dials:2"},

		// Only the wait for the spare's connection ends, after a third of the attempt, not that for its answer.
		{"the spare answers late", bothHTTP2, func(w *freshWorld) {
			w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(900 * time.Millisecond) }
		}, "warm freeze mark get took:2s attempts:2 dials:2"},

		// An unused spare keeps no connection open, whatever the base does with its own: for 30 seconds
		// at most, or as long as the base keeps them.
		{"idle spare", bothHTTP2, nothing, "warm freeze get attempts:2 close-base open:1 29.999s open:1 2ms open:0"},
		{"idle spare of a base that keeps longer", bothHTTP2, keeps(time.Hour), "warm freeze get attempts:2 close-base open:1 29.999s open:1 2ms open:0"},
		{"idle spare of a base that keeps 5 s", bothHTTP2, keeps(5 * time.Second), "warm freeze get attempts:2 close-base open:1 4.999s open:1 2ms open:0"},

		// A timeout before there was a connection says nothing about the existing ones.
		{"no connection, no doubt", play.Protos, func(w *freshWorld) {
			var dials *atomic.Int64
			dials = w.beforeDial(func(context.Context) error {
				if dials.Load() == 1 {
					time.Sleep(1500 * time.Millisecond)
				}
				return nil
			})
		}, "get attempts:2 1s base dials:2"},

		// If a copy of the base would behave differently, or its type is unknown, the base makes each attempt.
		{"a wrapper", []memhttp.Proto{memhttp.HTTP2}, func(w *freshWorld) { w.transport.Base = struct{ http.RoundTripper }{w.base} }, onlyTheBase},
		{"http registered", []memhttp.Proto{memhttp.H2C}, func(w *freshWorld) { w.base.RegisterProtocol("http", w.server.Transport()) }, onlyTheBase},
		{"https registered", []memhttp.Proto{memhttp.HTTP2}, registerHTTPS, onlyTheBase},
	} {
		eachBubble(t, row.name, row.protos, func(w *freshWorld) {
			row.set(w)
			w.play(row.script)
		})
	}
}

const (
	frozenAgain = "warm freeze mark get took:1.1s dials:2 1:base freeze mark get took:1.1s 2:dials:3 1:base freeze mark get took:1.1s 2:dials:4 1:base 10s 2:open:2"
	onlyTheBase = "get attempts:1 dials:1 freeze get fails attempts:4 dials:1"
)

// dialsIn has each dial take d.
func dialsIn(d time.Duration) func(*freshWorld) { return func(w *freshWorld) { w.slowDials(d) } }

// lateOnce has the second answer come too late.
func lateOnce(set func(*freshWorld)) func(*freshWorld) {
	return func(w *freshWorld) {
		set(w)
		answers := 0
		w.handle = func(_ http.ResponseWriter, r *http.Request) {
			if answers++; answers == 2 {
				ends(r)
			}
		}
	}
}

func unkept(w *freshWorld) { w.base.DisableKeepAlives = true }

func slower(w *freshWorld) {
	w.handle = func(http.ResponseWriter, *http.Request) { time.Sleep(time.Millisecond) }
}

func keeps(d time.Duration) func(*freshWorld) {
	return func(w *freshWorld) { w.base.IdleConnTimeout = d }
}

// play plays a script: of durations to wait, what happens, and what is right after that. Words
// after "1:" are for HTTP/1, after "2:" for HTTP/2. "fails" and "attempts" are about the last request, or all that were under way with it.
func (w *freshWorld) play(script string) {
	t := w.t
	var began time.Time
	var requests sync.WaitGroup
	words := strings.Fields(script)
	for i, word := range words {
		if version, rest, _ := strings.Cut(word, ":"); version == "1" || version == "2" {
			if word = rest; slices.Contains(bothHTTP2, w.proto) != (version == "2") {
				continue
			}
		}
		what, arg, _ := strings.Cut(word, ":")
		n, _ := strconv.Atoi(arg)
		d, _ := time.ParseDuration(arg)
		switch what {
		case "warm": // a connection comes into the pool of the base
			w.warm()
		case "pool":
			require.Zero(t, w.parallel(w.base, n))
			synctest.Wait()
		case "freeze":
			w.server.Listener.Freeze()
		case "freezes": // the next connections freeze when requests have got them
			w.freezes.Store(int64(n))
		case "base": // makes a request
			_, err := w.get(w.base)
			require.NoError(t, err)
		case "close-base":
			w.base.CloseIdleConnections()
		case "get", "post":
			w.attempts.Store(0)
			err := w.send(w.transport, w.request(strings.ToUpper(what), ""))
			fails := i+1 < len(words) && words[i+1] == "fails"
			require.Equal(t, fails, err != nil, "request %d of %q: %v", i, script, err)
		case "many": // requests, one every 20 seconds
			began := time.Now()
			for i := range 20 {
				require.NoError(t, w.send(w.transport, w.request([]string{"GET", "POST"}[i%2], "")))
				time.Sleep(20 * time.Second)
			}
			assert.Equal(t, 400*time.Second, time.Since(began), "none waits")
		case "go":
			requests.Go(w.mustGet)
		case "join":
			requests.Wait()
		case "mark":
			began = time.Now()
		case "took":
			assert.Equal(t, d, time.Since(began), script)
		case "attempts":
			assert.EqualValues(t, n, w.attempts.Load(), script)
		case "dials":
			assert.Equal(t, n, w.server.Listener.Dials(), "at word %d of %q", i, script)
		case "conns": // that have carried requests
			served := 0
			w.conns.Range(func(any, any) bool { served++; return true })
			assert.Equal(t, n, served, "at word %d of %q", i, script)
		case "open":
			synctest.Wait()
			assert.Equal(t, n, w.server.Listener.Open(), "at word %d of %q", i, script)
			assert.Empty(t, w.transport.HostStates(), "the host is healthy")
		case "fails":
		default:
			time.Sleep(play.Must(time.ParseDuration(word)))
		}
	}
}

func registerHTTPS(w *freshWorld) {
	other := w.server.Transport()
	w.base.Protocols, w.base.TLSNextProto = nil, map[string]func(string, *tls.Conn) http.RoundTripper{}
	w.base.RegisterProtocol("https", other)
}

// A pool may hold more dead connections than a request has attempts. The third
// attempt of a PUT or DELETE uses a new connection, because net/http doesn't
// resend these methods.
//
//retrip:promise P11
func TestFresh_StalePool(t *testing.T) {
	for _, method := range []string{"PUT", "DELETE", "POST"} {
		for name, body := range map[string]func() io.Reader{
			"no body": func() io.Reader { return nil }, "stream": func() io.Reader { return play.Stream([]byte("payload")) },
		} {
			for _, timeout := range []time.Duration{0, time.Hour} {
				play.Bubble(t, fmt.Sprintf("%s/%s/timeout %v", method, name, timeout), func(t *testing.T) {
					s, base, stale := play.StalePool(t, memhttp.HTTP1, 25)
					dials := s.Listener.Dials()
					stale.Store(25)
					attempts := 0
					tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout }), Trace: &retrip.Trace{Attempt: func(retrip.Event) {
						if attempts++; attempts == 3 {
							stale.Store(0) // only the connections of the pool are dead
						}
					}}}
					defer tr.CloseIdleConnections()
					err := testenv.Try(tr, play.MustRequest(t, method, s.URL, body()))
					if method == "POST" {
						assert.Error(t, err)
						assert.Equal(t, 1, attempts)
						return
					}
					require.NoError(t, err)
					assert.Equal(t, 3, attempts)
					assert.Equal(t, 1, s.Listener.Dials()-dials, "one new connection")
				})
			}
		}
	}
}

// A retry after two lost connections waits no longer for a new one than a retry
// after a timeout, so that the base can still answer within the attempt.
//
//retrip:promise P11
func TestFresh_StalePoolSlowDial(t *testing.T) {
	for _, tt := range []struct{ dial, timeout, deadline, waits time.Duration }{
		{time.Hour, 0, 0, time.Second},
		{time.Hour, time.Hour, time.Hour, time.Second},
		{time.Hour, 6 * time.Second, 0, time.Second},
		{time.Hour, 900 * time.Millisecond, 0, 300 * time.Millisecond},
		{600 * time.Millisecond, 300 * time.Millisecond, 0, 100 * time.Millisecond},
		{600 * time.Millisecond, 1200 * time.Millisecond, 0, 400 * time.Millisecond},
		{600 * time.Millisecond, 0, 0, 600 * time.Millisecond},
		{time.Hour, 0, 2600 * time.Millisecond, 200 * time.Millisecond},
		{time.Hour, time.Second, 2600 * time.Millisecond, 200 * time.Millisecond},
	} {
		play.Bubble(t, fmt.Sprint(tt), func(t *testing.T) {
			s, base, stale := play.StalePool(t, memhttp.HTTP1, 25)
			w := &freshWorld{t: t, server: s, base: base}
			w.slowDials(tt.dial)
			stale.Store(2)
			var began time.Time
			tr := &retrip.Transport{
				Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.Deadline, p.MaxAttempts = tt.timeout, tt.deadline, 3 }),
				Trace: &retrip.Trace{Attempt: func(retrip.Event) { began = time.Now() }},
			}
			play.Do(t, tr, play.MustRequest(t, http.MethodPut, s.URL, strings.NewReader("payload")))
			assert.Equal(t, tt.waits, time.Since(began))
			tr.CloseIdleConnections()
			time.Sleep(2 * time.Hour) // the dial ends
		})
	}
}
