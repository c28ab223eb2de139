// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
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

// Logs may print the context of a request, so it must show nothing of the
// request.
//
//retrip:promise P4
func TestAttempt_ContextShowsNoSecrets(t *testing.T) {
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://user:password@example.com/?token=secret", nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer secret")
	asked := false
	tr := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		asked = true
		type key struct{}
		child, cancel := context.WithCancel(context.WithValue(r.Context(), key{}, 1))
		defer cancel()
		for _, ctx := range []context.Context{r.Context(), child} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				text := fmt.Sprintf(verb, ctx)
				assert.NotContains(t, text, "Bearer", verb)
				assert.NotContains(t, text, "password", verb)
				assert.NotContains(t, text, "secret", verb)
			}
		}
		return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
	})}
	_, err = tr.RoundTrip(req)
	require.NoError(t, err)
	assert.True(t, asked)
}

// A base may derive a request of its own from the one it gets. The response
// then has the derived request's context, which ends when the caller's context
// ends and not before.
//
//retrip:promise P1
func TestAttempt_ContextOfTheResponse(t *testing.T) {
	type key struct{}
	for _, body := range []io.ReadCloser{http.NoBody, io.NopCloser(strings.NewReader("text"))} {
		parent, cancel := context.WithCancel(t.Context())
		tr := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			own := r.WithContext(context.WithValue(r.Context(), key{}, "the base's own"))
			return &http.Response{StatusCode: 200, Body: body, Request: own}, nil
		})}
		req, err := http.NewRequestWithContext(parent, "GET", "http://example.com/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		ctx := resp.Request.Context()
		assert.NoError(t, ctx.Err())
		assert.Equal(t, "the base's own", ctx.Value(key{}))
		cancel()
		assert.ErrorIs(t, ctx.Err(), context.Canceled)
		<-ctx.Done()
	}
}

// The request that a base gets has only the caller's header fields, unless the
// policy asks for another one.
//
//retrip:promise P4
func TestAttempt_HeaderIsTheCallers(t *testing.T) {
	for _, method := range []string{"GET", "PUT", "DELETE", "POST"} {
		for _, own := range []http.Header{{}, {"Idempotency-Key": {}}, {"X-Idempotency-Key": {"k"}}, {"X-A": {"b"}}} {
			var seen []http.Header
			tr := &retrip.Transport{
				Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}, AttemptTimeout: time.Minute, IdempotentMethods: []string{"POST"}},
				Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					seen = append(seen, r.Header.Clone())
					return nil, io.ErrUnexpectedEOF
				}),
			}
			req, err := http.NewRequestWithContext(t.Context(), method, "http://example.com/", strings.NewReader("text"))
			require.NoError(t, err)
			req.Header = own.Clone()
			_, err = tr.RoundTrip(req)
			require.Error(t, err)
			require.Len(t, seen, 4)
			for _, header := range seen {
				assert.Equal(t, own, header)
			}
		}
	}
}

// The context of a response is the caller's in everything but its values, and so
// are contexts that are derived from it.
//
//retrip:promise P1
func TestAttempt_CauseOfTheResponse(t *testing.T) {
	type key struct{}
	mine := errors.New("the caller's reason")
	for name, derive := range map[string]func(*testing.T, context.Context) context.Context{
		"value": func(t *testing.T, ctx context.Context) context.Context { return context.WithValue(ctx, key{}, 1) },
		"cancel": func(t *testing.T, ctx context.Context) context.Context {
			ctx, cancel := context.WithCancel(ctx)
			t.Cleanup(cancel)
			return ctx
		},
		"ended": func(t *testing.T, ctx context.Context) context.Context {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(errors.New("the base's reason"))
			return ctx
		},
		"timeout": func(t *testing.T, ctx context.Context) context.Context {
			ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, errors.New("the base's limit"))
			t.Cleanup(cancel)
			return ctx
		},
		"trace": func(t *testing.T, ctx context.Context) context.Context {
			return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectStart: func(string, string) {}})
		},
	} {
		for _, depth := range []int{1, 2} {
			for caller, end := range map[string]func(*testing.T, context.Context) context.Context{
				"cancel": func(t *testing.T, ctx context.Context) context.Context {
					ctx, cancel := context.WithCancelCause(ctx)
					time.AfterFunc(time.Second, func() { cancel(mine) })
					return ctx
				},
				"timeout": func(t *testing.T, ctx context.Context) context.Context {
					ctx, cancel := context.WithTimeoutCause(ctx, time.Second, mine)
					t.Cleanup(cancel)
					return ctx
				},
			} {
				play.Bubble(t, fmt.Sprint(name, depth, caller), func(t *testing.T) {
					var tr http.RoundTripper = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("text")), Request: r.WithContext(derive(t, r.Context()))}, nil
					})
					for range depth {
						base := tr
						tr = &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
							return base.RoundTrip(r.WithContext(context.WithValue(r.Context(), key{}, 0)))
						})}
					}
					req := play.MustRequest(t, "GET", "http://example.com/", nil)
					resp, _ := play.Do(t, tr, req.WithContext(end(t, t.Context())))
					ctx := resp.Request.Context()
					child, cancel := context.WithCancel(context.WithValue(ctx, key{}, 2))
					defer cancel()
					late, cancel := context.WithTimeoutCause(ctx, time.Hour, errors.New("later"))
					defer cancel()
					all := []context.Context{ctx, child, late}
					for _, c := range all {
						assert.NoError(t, c.Err())
						assert.NoError(t, context.Cause(c))
					}
					called := make(chan error, 1)
					context.AfterFunc(ctx, func() { called <- context.Cause(ctx) })
					<-ctx.Done()
					synctest.Wait()
					for _, c := range all {
						assert.Error(t, c.Err())
						assert.Equal(t, mine, context.Cause(c))
					}
					assert.Equal(t, mine, <-called)
					assert.NoError(t, context.Cause(context.WithoutCancel(ctx)))
				})
			}
		}
	}
}

// A base may send more often than the bound allows, and still return a response. It
// is used whole or not at all.
//
//retrip:promise P18
func TestAttempt_ResponseDespiteHiddenSends(t *testing.T) {
	for _, tt := range []struct {
		name string
		body bool          // the response has one
		late time.Duration // when the base sends ten times more, beside the first send
		want string        // the error
	}{
		{"a body", true, time.Second, "more than 10 times"},
		{"no body", false, time.Second, ""},
		{"only headers", true, time.Second, ""},
		{"a body that is being read", true, 5 * time.Second, ""},
		{"a body that has been read", true, time.Minute, ""},
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
			play.Bubble(t, tt.name+"/"+proto.String(), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					play.LetPass(3 * time.Second)
					if !tt.body {
						w.WriteHeader(http.StatusNoContent)
						return
					}
					_, _ = io.WriteString(w, "one ")
					play.Flush(w)
					play.LetPass(4 * time.Second)
					_, _ = io.WriteString(w, "two")
				}))
				inner := s.Transport()
				defer inner.CloseIdleConnections()
				base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					trace := httptrace.ContextClientTrace(r.Context())
					time.AfterFunc(tt.late, func() {
						for range 10 {
							trace.GotConn(httptrace.GotConnInfo{})
						}
					})
					// The base heeds the end of its context only once it has an answer.
					resp, err := inner.RoundTrip(r.WithContext(context.WithoutCancel(r.Context())))
					if err == nil && resp.Body != http.NoBody {
						resp.Body = &heedful{resp.Body, r.Context()}
					}
					return resp, err
				})
				tr := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Hour, MaxAttempts: 1}}
				method := "GET"
				if tt.name == "only headers" {
					method = "HEAD"
				}
				resp, err := tr.RoundTrip(play.MustRequest(t, method, s.URL, nil))
				if tt.want != "" {
					assert.ErrorContains(t, err, tt.want)
					assert.NotErrorIs(t, err, context.Canceled)
					return
				}
				require.NoError(t, err)
				want := ""
				if tt.body && method == "GET" {
					want = "one two"
				}
				assert.Equal(t, want, play.Finish(t, resp))
				play.LetPass(time.Hour)
			})
		}
	}
}

// heedful is a body that ends with a context, as those of net/http do.
type heedful struct {
	io.ReadCloser
	ctx context.Context
}

func (b *heedful) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.ctx.Err() != nil && err != io.EOF {
		return 0, b.ctx.Err()
	}
	return n, err
}

// If the caller's own hook refuses an interim response, the host is not to blame,
// and another attempt can't help.
//
//retrip:promise P8
func TestAttempt_InterimResponseRefused(t *testing.T) {
	refusal := errors.New("no hints, please")
	for _, method := range []string{"GET", "PUT", "POST"} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			for _, verify := range []bool{false, true} {
				for _, status := range []int{http.StatusEarlyHints, http.StatusProcessing} {
					for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
						play.Bubble(t, fmt.Sprint(method, timeout, verify, status, proto), func(t *testing.T) {
							var requests atomic.Int32
							s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
								requests.Add(1)
								w.WriteHeader(status)
								w.WriteHeader(http.StatusOK)
							}))
							base := s.Transport()
							if verify && base.TLSClientConfig != nil {
								base.TLSClientConfig.VerifyConnection = func(tls.ConnectionState) error { return nil }
							}
							tr := &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: timeout}}
							asked := 0
							ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
								Got1xxResponse: func(int, textproto.MIMEHeader) error { asked++; return refusal },
							})
							req := play.MustRequest(t, method, s.URL, strings.NewReader("text"))
							_, err := tr.RoundTrip(req.WithContext(ctx))
							assert.ErrorContains(t, err, refusal.Error())
							assert.Equal(t, 1, asked)
							assert.EqualValues(t, 1, requests.Load())
							assert.Empty(t, play.Held(tr))
						})
					}
				}
			}
		}
	}
}

// A base may send again after the hook's refusal. Only the last send counts.
//
//retrip:promise P8
func TestAttempt_InterimResponseRefusedBefore(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hint" {
				w.WriteHeader(http.StatusEarlyHints)
				return
			}
			memhttp.RequestConn(r).Reset()
			panic(http.ErrAbortHandler)
		}))
		inner, attempts := s.Transport(), 0
		tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			attempts++
			hint := r.Clone(r.Context())
			hint.URL.Path = "/hint"
			_, err := inner.RoundTrip(hint)
			assert.Error(t, err)
			return inner.RoundTrip(r)
		})}
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { return errors.New("no hints, please") },
		})
		_, err := tr.RoundTrip(play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx))
		assert.Error(t, err)
		assert.Equal(t, 4, attempts)
	})
}

// A hook that accepts an interim response changes nothing about what follows.
//
//retrip:promise P8
func TestAttempt_InterimResponseAccepted(t *testing.T) {
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
		play.Bubble(t, proto.String(), func(t *testing.T) {
			var requests atomic.Int32
			s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusEarlyHints)
				switch requests.Add(1) {
				case 1:
					memhttp.RequestConn(r).Reset()
					panic(http.ErrAbortHandler)
				case 2:
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			asked := 0
			ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(int, textproto.MIMEHeader) error { asked++; return nil },
			})
			tr := &retrip.Transport{Base: s.Transport()}
			resp, _ := play.Do(t, tr, play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx))
			assert.Equal(t, 200, resp.StatusCode)
			assert.EqualValues(t, 3, requests.Load())
			assert.GreaterOrEqual(t, asked, 2)
		})
	}
}
