// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// If net/http has had a connection within the attempt, a later dial error
// proves nothing.
//
//retrip:promise P6
func TestProof_SentBeforeTheDialFailed(t *testing.T) {
	play.Bubble(t, "by the hooks", func(t *testing.T) {
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(r.Context())
			trace.GetConn("example.com:80")
			trace.GotConn(httptrace.GotConnInfo{})
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		})
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Hour })}
		_, err := tr.RoundTrip(play.Request(t, "POST", strings.NewReader("once")))
		assert.ErrorIs(t, err, syscall.ECONNREFUSED)
		assert.Equal(t, 1, base.Attempts())
	})
	play.Bubble(t, "over HTTP/2", func(t *testing.T) {
		var seen atomic.Int32
		var l *memhttp.Listener
		var base *http.Transport
		base, l = play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
			seen.Add(1)
			l.Refuse(true)
			w.Reset(stream, 1) // PROTOCOL_ERROR, after which net/http resends
			w.GoAway(stream, 0)
			w.Close()
		})
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Hour })}
		attempts := 0
		ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }})
		_, err := tr.RoundTrip(play.MustRequest(t, "POST", "http://example.com/", strings.NewReader("once")).WithContext(ctx))
		assert.Error(t, err)
		assert.Equal(t, 1, attempts)
		assert.EqualValues(t, 1, seen.Load())
	})
}

// The same errors count as proof with and without a timeout.
//
//retrip:promise P6
func TestProof_SameWithAndWithoutTimeouts(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		send := func(t *testing.T, base http.RoundTripper, url string) int {
			attempts := 0
			tr := &retrip.Transport{Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout }), Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				attempts++
				return base.RoundTrip(r)
			})}
			resp, err := tr.RoundTrip(play.MustRequest(t, "POST", url, strings.NewReader("once")))
			if err == nil {
				play.Finish(t, resp)
			}
			return attempts
		}
		play.Bubble(t, fmt.Sprint("TLS handshake that fails, timeout ", timeout), func(t *testing.T) {
			var dials atomic.Int32
			base := &http.Transport{DialContext: hangsUp(&dials)}
			assert.Equal(t, 1, send(t, base, "https://example.com/"))
			assert.EqualValues(t, 1, dials.Load())
		})
		play.Bubble(t, fmt.Sprint("CONNECT that is refused, timeout ", timeout), func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusBadGateway)
			}))
			base := s.Transport()
			base.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(s.URL) }
			assert.Equal(t, 1, send(t, base, "https://example.com/"))
		})
		play.Bubble(t, fmt.Sprint("dial that fails, timeout ", timeout), func(t *testing.T) {
			base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
			}}
			assert.Equal(t, 4, send(t, base, "https://example.com/"))
		})
	}
	play.Bubble(t, "our own timeout before there was a connection", func(t *testing.T) {
		var dials atomic.Int32
		base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			time.Sleep(10 * time.Second) // net/http continues a dial without its request
			return nil, errors.New("the dialer's own words")
		}}
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		_, err := tr.RoundTrip(play.MustRequest(t, "POST", "http://example.com/", strings.NewReader("once")))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualValues(t, 4, dials.Load())
		time.Sleep(time.Minute)
		synctest.Wait()
	})
	play.Bubble(t, "our own timeout after there was one", func(t *testing.T) {
		var seen atomic.Int32
		s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			seen.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}))
		tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		_, err := tr.RoundTrip(play.MustRequest(t, "POST", s.URL, strings.NewReader("once")))
		assert.ErrorIs(t, err, context.DeadlineExceeded)
		assert.EqualValues(t, 1, seen.Load())
	})
}

// A GOAWAY that leaves a stream unprocessed ends a connection, but is no sign
// of trouble at the host. The request is sent again at once, without a token,
// up to ten times.
//
//retrip:promise P6 P17
func TestProof_GracefulShutdown(t *testing.T) {
	for _, method := range []string{"POST", "PUT"} {
		play.Bubble(t, method, func(t *testing.T) {
			var seen atomic.Int32
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
				if seen.Add(1) <= 5 {
					w.GoAway(0, 0)
					w.Close()
					return
				}
				w.OK(stream)
			})
			tr := &retrip.Transport{Base: base}
			var done retrip.Event
			ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(e retrip.Event) { done = e }})
			start := time.Now()
			play.Do(t, tr, play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("payload"))).WithContext(ctx))
			assert.Zero(t, time.Since(start))
			assert.Equal(t, 1, done.Attempt)
			assert.Equal(t, 6, done.Sends)
			assert.Empty(t, tr.HostStates())
		})
		play.Bubble(t, method+" for ever", func(t *testing.T) {
			var seen atomic.Int32
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, _ uint32) {
				seen.Add(1)
				w.GoAway(0, 0)
				w.Close()
			})
			_, err := (&retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Hour })}).
				RoundTrip(play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("payload"))))
			assert.ErrorContains(t, err, "more than 10 times")
			if method == "POST" {
				assert.LessOrEqual(t, seen.Load(), int32(10))
			} else {
				assert.LessOrEqual(t, seen.Load(), int32(4*10))
			}
		})
		play.Bubble(t, method+" of more than is kept", func(t *testing.T) {
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, _ uint32) {
				w.GoAway(0, 0)
				w.Close()
			})
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = 5 })}
			var done retrip.Event
			ctx := retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(e retrip.Event) { done = e }})
			_, err := tr.RoundTrip(play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("payload"))).WithContext(ctx))
			assert.ErrorContains(t, err, "GOAWAY", "the cause, not an error of retrip's own")
			assert.Equal(t, retrip.ReasonBodyNotReplayable, done.Reason)
		})
	}
}

// hangsUp returns a dialer whose servers close each connection at once.
func hangsUp(dials *atomic.Int32) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		client, server := net.Pipe()
		server.Close()
		return client, nil
	}
}

// A proxy that refuses CONNECT chooses the text of the error. No such text is
// proof, and none makes retrip resend at once.
//
//retrip:promise P6
func TestProof_TextsOfAProxy(t *testing.T) {
	const begin, end = "http2: Transport: cannot retry err [", "] after Request.Body was written; define Request.GetBody to avoid this error"
	for name, text := range map[string]string{
		"GOAWAY":         begin + "http2: Transport received Server's graceful shutdown GOAWAY" + end,
		"REFUSED_STREAM": begin + "stream error: stream ID 1; REFUSED_STREAM; received from peer" + end,
	} {
		for method, want := range map[string]int32{"POST": 1, "PUT": 4} {
			play.Bubble(t, name+"/"+method, func(t *testing.T) {
				l := memhttp.Listen()
				defer l.Close()
				var asked atomic.Int32
				go func() {
					for {
						c, err := l.Accept()
						if err != nil {
							return
						}
						go func() {
							defer c.Close()
							if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
								asked.Add(1)
								_, _ = io.WriteString(c, "HTTP/1.1 502 "+text+"\r\nContent-Length: 0\r\n\r\n")
							}
						}()
					}
				}()
				base := &http.Transport{DialContext: l.Dial, Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy:1"})}
				defer base.CloseIdleConnections()
				_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.MustRequest(t, method, "https://example.com/", play.Stream([]byte("x"))))
				assert.ErrorContains(t, err, text)
				assert.Equal(t, want, asked.Load())
			})
		}
	}
}

// If the connections of a base can't be observed, the base is used once per
// attempt.
//
//retrip:promise P6
func TestProof_GracefulShutdownUnseen(t *testing.T) {
	for _, method := range []string{"POST", "PUT"} {
		play.Bubble(t, method, func(t *testing.T) {
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, _ uint32) { w.GoAway(0, 0); w.Close() })
			used := 0
			detached := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				used++
				return base.RoundTrip(r.WithContext(context.Background()))
			})
			tr := &retrip.Transport{Base: detached, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
			_, err := tr.RoundTrip(play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("x"))))
			assert.ErrorContains(t, err, "GOAWAY")
			assert.Equal(t, map[string]int{"POST": 1, "PUT": 4}[method], used)
		})
	}
}
