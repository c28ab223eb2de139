// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// net/http can send http.NoBody again without a GetBody, and in Go 1.26 does so after a
// PROTOCOL_ERROR, which proves nothing. A later send that was refused doesn't
// prove that the first one was.
//
//retrip:promise P6
func TestProof_ResentWithoutBody(t *testing.T) {
	for _, timeout := range []time.Duration{0, time.Hour} {
		play.Bubble(t, fmt.Sprint("timeout ", timeout), func(t *testing.T) {
			var seen atomic.Int32
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
				if seen.Add(1) == 1 {
					w.Reset(stream, 1) // PROTOCOL_ERROR
					return
				}
				w.Reset(stream, 7) // REFUSED_STREAM
			})
			req, done := traced(t, play.MustRequest(t, "POST", "http://example.com/", nil))
			req.Body = http.NoBody
			assert.Error(t, testenv.Try(&retrip.Transport{Base: base, Policy: timely(timeout)}, req))
			assert.Equal(t, 1, done.Attempt)
			assert.Equal(t, testenv.Go126, seen.Load() > 2)
		})
	}
}

// Without a connection, nothing was sent. Derived attempts know that, whatever the error;
// of a plain one, the error must say so.
//
//retrip:promise P6
func TestProof_NoConnection(t *testing.T) {
	refuse := func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("the dialer's own words")
	}
	var dials atomic.Int32
	for name, set := range map[string]func(t *testing.T, base *http.Transport){
		"a TLS handshake fails":   func(_ *testing.T, base *http.Transport) { base.DialContext = hangsUp(&dials) },
		"the dialer fails":        func(_ *testing.T, base *http.Transport) { base.DialContext = refuse },
		"the dialer of TLS fails": func(_ *testing.T, base *http.Transport) { base.DialTLSContext = refuse },
		"a handshake times out": func(_ *testing.T, base *http.Transport) {
			base.DialContext, base.TLSHandshakeTimeout = silent, time.Second
		},
		"no byte is taken": func(_ *testing.T, base *http.Transport) { base.DialTLSContext = stuffed },
		"the proxy's handshake fails": func(_ *testing.T, base *http.Transport) {
			base.DialContext = hangsUp(&dials)
			proxied(base, "https://proxy:1")
		},
		"a SOCKS proxy hangs up": func(_ *testing.T, base *http.Transport) {
			base.DialContext = hangsUp(&dials)
			proxied(base, "socks5://proxy:1")
		},
	} {
		for kind, body := range kinds {
			play.Bubble(t, name+"/body "+kind, func(t *testing.T) {
				good := memhttp.NewServer(t, memhttp.HTTPS, http.HandlerFunc(play.Echo))
				bad := good.Transport()
				set(t, bad)
				next := []http.RoundTripper{bad, good.Transport()}
				base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					tr := next[0]
					next = next[1:]
					return tr.RoundTrip(r)
				})
				_, text := play.Do(t, &retrip.Transport{Base: base, Policy: timely(time.Hour)}, play.MustRequest(t, "POST", good.URL, body()))
				assert.Equal(t, kind != "none", text == "payload")
				assert.Empty(t, next)
			})
		}
		play.Bubble(t, name+"/plain", func(t *testing.T) {
			bad := new(http.Transport)
			set(t, bad)
			base := play.Keep(bad.RoundTrip)
			assert.Error(t, testenv.Try(&retrip.Transport{Base: base, Policy: play.Steady}, play.MustRequest(t, "POST", "https://example.com/", strings.NewReader("once"))))
			want := 1
			if strings.HasSuffix(name, "SOCKS proxy hangs up") || strings.HasPrefix(name, "the proxy") || name == "no byte is taken" {
				want = 4 // net/http's error says so
			}
			assert.Equal(t, want, base.Attempts())
		})
	}
}

// What httptrace says counts only for the connection of the request itself or of its proxy: not
// for what the base, or a dialer, asks for besides with the request's context.
//
//retrip:promise P6 P18
func TestProof_Subject(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2} {
		for _, tt := range []struct {
			name       string
			base       func(s, side *subject) http.RoundTripper
			breaks     bool // the server loses what it has processed
			seen       int  // by the server
			sends, all int  // in the last attempt, and attempts
		}{
			{"a side request is refused, then it is sent in another way", func(s, side *subject) http.RoundTripper {
				side.Listener.Refuse(true)
				return besides(side, 1, s.untraced())
			}, true, 1, 0, 1},
			{"a side request, then a dial is refused", func(s, side *subject) http.RoundTripper {
				s.Listener.Refuse(true)
				return besides(side, 1, s.tr)
			}, false, 0, 0, 4},
			{"a side request, then it is lost", func(s, side *subject) http.RoundTripper { return besides(side, 1, s.tr) }, true, 1, 1, 1},
			{"a side request", func(s, side *subject) http.RoundTripper { return besides(side, 1, s.tr) }, false, 1, 1, 1},
			{"20 side requests", func(s, side *subject) http.RoundTripper {
				side.tr.DisableKeepAlives = true
				return besides(side, 20, s.tr)
			}, false, 1, 1, 1},
			{"it is sent, then a side request is refused", func(s, side *subject) http.RoundTripper {
				side.Listener.Refuse(true)
				return testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					resp, err := s.tr.RoundTrip(r)
					if err == nil {
						resp.Body.Close()
					}
					return besides(side, 1, nil).RoundTrip(r)
				})
			}, false, 1, 1, 1},
			{"a dialer speaks HTTP", func(s, side *subject) http.RoundTripper { return s.dialsBy(side) }, false, 1, 1, 1},
			{"a dialer speaks HTTP, then it is lost", func(s, side *subject) http.RoundTripper { return s.dialsBy(side) }, true, 1, 1, 1},
			{"a dialer speaks HTTP, then the dial is refused", func(s, side *subject) http.RoundTripper {
				s.Listener.Refuse(true)
				return s.dialsBy(side)
			}, false, 0, 0, 4},
			{"a dialer's request is refused", func(s, side *subject) http.RoundTripper {
				side.Listener.Refuse(true)
				return s.dialsBy(side)
			}, true, 1, 1, 1},
			{"a registered protocol asks, then sends in another way", func(s, side *subject) http.RoundTripper {
				side.Listener.Refuse(true)
				base := &http.Transport{Proxy: http.ProxyFromEnvironment, Protocols: memhttp.HTTP1.Protocols()}
				for _, scheme := range []string{"http", "https"} {
					base.RegisterProtocol(scheme, besides(side, 1, s.untraced()))
				}
				return base
			}, true, 1, 0, 1},
		} {
			play.Bubble(t, fmt.Sprint(proto, "/", tt.name), func(t *testing.T) {
				seen := 0
				s := newSubject(t, proto, func(w http.ResponseWriter, r *http.Request) {
					seen++
					_, _ = io.Copy(io.Discard, r.Body)
					if tt.breaks {
						panic(http.ErrAbortHandler)
					}
				})
				side := newSubject(t, memhttp.HTTP1, nothing)
				req, done := traced(t, play.MustRequest(t, "POST", s.URL, strings.NewReader("once")))
				_ = testenv.Try(&retrip.Transport{Base: tt.base(s, side), Policy: timely(time.Hour)}, req)
				assert.Equal(t, tt.seen, seen)
				assert.Equal(t, tt.sends, done.Sends)
				assert.Equal(t, tt.all, done.Attempt)
			})
		}
	}
}

// subject is a server with a transport to it.
type subject struct {
	*memhttp.Server
	tr *http.Transport
}

func newSubject(t *testing.T, proto memhttp.Proto, h http.HandlerFunc) *subject {
	s := memhttp.NewServer(t, proto, h)
	return &subject{s, s.Transport()}
}

// ask asks s with the context of another request.
func (s *subject) ask(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL, nil)
	if err != nil {
		return err
	}
	return testenv.Try(s.tr, req)
}

// untraced sends requests to s in a way of which httptrace says nothing.
func (s *subject) untraced() http.RoundTripper {
	return testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		return s.tr.RoundTrip(r.WithContext(context.Background()))
	})
}

// besides returns base with n requests to side before each of its own. Without a base, it
// returns the error of the last.
func besides(side *subject, n int, base http.RoundTripper) http.RoundTripper {
	return testenv.RoundTripper(func(r *http.Request) (resp *http.Response, err error) {
		for range n {
			err = side.ask(r.Context())
		}
		if base == nil {
			return nil, err
		}
		return base.RoundTrip(r)
	})
}

// dialsBy returns the transport of s, whose dialer asks side first.
func (s *subject) dialsBy(side *subject) *http.Transport {
	s.tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		_ = side.ask(ctx)
		return s.Listener.Dial(ctx, network, addr)
	}
	return s.tr
}

// Through a proxy, the same holds for net/http's own transport. Of another base, what goes to
// a proxy can't be told from side requests, and is no proof.
//
//retrip:promise P6
func TestProof_SubjectIsAProxy(t *testing.T) {
	for _, wrapped := range []bool{false, true} {
		play.Bubble(t, fmt.Sprint("wrapped ", wrapped), func(t *testing.T) {
			proxy, asked := play.Flaky(100, http.StatusBadGateway, nil)
			s := memhttp.NewServer(t, memhttp.HTTP1, proxy)
			base := s.Transport()
			proxied(base, s.URL)
			tr := &retrip.Transport{Base: base, Policy: timely(time.Hour)}
			want := int32(4)
			if wrapped {
				tr.Base, want = testenv.RoundTripper(base.RoundTrip), 1
			}
			req, done := traced(t, play.MustRequest(t, "POST", "https://example.com/", strings.NewReader("once")))
			assert.Error(t, testenv.Try(tr, req))
			assert.Equal(t, want, asked.Load())
			assert.Zero(t, done.Sends)
		})
	}
}

// silent connects with a server that never says anything.
func silent(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	return client, nil
}

// stuffed dials a connection that takes no byte.
func stuffed(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := silent(ctx, network, addr)
	return stuffedConn{conn}, err
}

type stuffedConn struct{ net.Conn }

func (stuffedConn) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A GOAWAY that leaves a stream unprocessed ends a connection, but is no sign
// of trouble at the host. The request is sent again at once, without a token,
// up to ten times.
//
//retrip:promise P6 P17
func TestProof_GracefulShutdown(t *testing.T) {
	for method, attempts := range map[string]int32{"POST": 1, "PUT": 4} {
		// send sends a stream to a server that goes away so often.
		send := func(t *testing.T, times int32, policy retrip.Policy) (tr *retrip.Transport, done *retrip.Event, seen *atomic.Int32, err error) {
			seen = new(atomic.Int32)
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
				if seen.Add(1) <= times {
					goesAway(w)
					return
				}
				w.OK(stream)
			})
			req, done := traced(t, play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("payload"))))
			tr = &retrip.Transport{Base: base, Policy: policy}
			return tr, done, seen, testenv.Try(tr, req)
		}
		play.Bubble(t, method, func(t *testing.T) {
			start := time.Now()
			tr, done, _, err := send(t, 5, retrip.Policy{})
			require.NoError(t, err)
			assert.Zero(t, time.Since(start))
			assert.Equal(t, 1, done.Attempt)
			assert.Equal(t, 6, done.Sends)
			assert.Empty(t, tr.HostStates())
		})
		play.Bubble(t, method+" for ever", func(t *testing.T) {
			_, _, seen, err := send(t, 1000, timely(time.Hour))
			assert.ErrorContains(t, err, "more than 10 times")
			assert.LessOrEqual(t, seen.Load(), 10*attempts)
		})
		play.Bubble(t, method+" of more than is kept", func(t *testing.T) {
			_, done, _, err := send(t, 1000, play.With(func(p *retrip.Policy) { p.MaxReplayBody = 5 }))
			assert.ErrorContains(t, err, "GOAWAY", "the cause, not an error of retrip's own")
			assert.Equal(t, retrip.ReasonBodyNotReplayable, done.Reason)
		})
		play.Bubble(t, method+" in a single attempt", func(t *testing.T) {
			_, _, seen, err := send(t, 1000, retrip.Policy{MaxAttempts: 1})
			assert.ErrorContains(t, err, "GOAWAY")
			assert.EqualValues(t, 1, seen.Load())
		})
		// If the connections of a base can't be observed, the base is used once per attempt.
		play.Bubble(t, method+" unseen", func(t *testing.T) {
			base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, _ uint32) { goesAway(w) })
			detached := play.Keep(func(r *http.Request) (*http.Response, error) {
				return base.RoundTrip(r.WithContext(context.Background()))
			})
			tr := &retrip.Transport{Base: detached, Policy: timely(time.Second)}
			_, err := tr.RoundTrip(play.MustRequest(t, method, "http://example.com/", play.Stream([]byte("x"))))
			assert.ErrorContains(t, err, "GOAWAY")
			assert.EqualValues(t, attempts, detached.Attempts())
		})
	}
}
