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
	asked := false
	tr := &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		asked = true
		type key struct{}
		child, cancel := context.WithCancel(context.WithValue(r.Context(), key{}, 1))
		defer cancel()
		for _, ctx := range []context.Context{r.Context(), child} {
			for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
				assert.NotRegexp(t, "Bearer|password|secret", fmt.Sprintf(verb, ctx), verb)
			}
		}
		return play.Reply(200)(r)
	})}
	req := play.MustRequest(t, "GET", "http://user:password@example.com/?token=secret", nil).WithContext(t.Context())
	req.Header.Set("Authorization", "Bearer secret")
	play.Do(t, tr, req)
	assert.True(t, asked)
}

// A base may derive a request of its own from the one it gets. The response then has the
// derived request's context, which is the caller's in everything but its values: it ends
// when the caller's context ends, for its reason, and not before. So do contexts that are
// derived from it.
//
//retrip:promise P1
func TestAttempt_ContextOfTheResponse(t *testing.T) {
	type key struct{}
	mine, others := errors.New("the caller's reason"), errors.New("the base's reason")
	for name, derive := range map[string]func(context.Context) (context.Context, func()){
		"value": func(ctx context.Context) (context.Context, func()) { return ctx, func() {} },
		"ended": func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(others)
			return ctx, func() {}
		},
		"timeout": func(ctx context.Context) (context.Context, func()) {
			return context.WithTimeoutCause(ctx, time.Minute, others)
		},
		"trace": func(ctx context.Context) (context.Context, func()) {
			return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{ConnectStart: func(string, string) {}}), func() {}
		},
	} {
		for _, depth := range []int{1, 2} {
			play.Bubble(t, fmt.Sprint(name, depth), func(t *testing.T) {
				var tr http.RoundTripper = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					ctx, cancel := derive(context.WithValue(r.Context(), key{}, "the base's own"))
					t.Cleanup(cancel)
					return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("text")), Request: r.WithContext(ctx)}, nil
				})
				for range depth {
					base := tr
					tr = &retrip.Transport{Policy: retrip.Policy{AttemptTimeout: time.Minute}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						return base.RoundTrip(r.WithContext(context.WithValue(r.Context(), key{}, 0)))
					})}
				}
				callers, cancel := context.WithTimeoutCause(t.Context(), time.Second, mine)
				defer cancel()
				resp, got := play.Do(t, tr, play.MustRequest(t, "GET", "http://example.com/", nil).WithContext(callers))
				assert.Equal(t, "text", got)
				ctx := resp.Request.Context()
				assert.Equal(t, "the base's own", ctx.Value(key{}))
				child, cancel := context.WithCancel(context.WithValue(ctx, key{}, 2))
				defer cancel()
				late, cancel := context.WithTimeoutCause(ctx, time.Hour, others)
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
		for _, proto := range play.Protos {
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

// interim returns a request whose hook takes interim responses and returns err, and how
// often it was asked.
func interim(t *testing.T, method, url string, err error) (req *http.Request, asked *int) {
	asked = new(int)
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse: func(int, textproto.MIMEHeader) error { *asked++; return err },
	})
	return play.MustRequest(t, method, url, strings.NewReader("text")).WithContext(ctx), asked
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
					for _, proto := range play.Protos {
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
							req, asked := interim(t, method, s.URL, refusal)
							assert.ErrorContains(t, testenv.Try(tr, req), refusal.Error())
							assert.Equal(t, 1, *asked)
							assert.EqualValues(t, 1, requests.Load())
							assert.Empty(t, play.Held(tr))
						})
					}
				}
			}
		}
	}
}
