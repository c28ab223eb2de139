// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// goAway refuses every request by closing its connection with GOAWAY.
func goAway(f *frameConn, _ uint32, _ int64) bool {
	return f.WriteGoAway(0, http2.ErrCodeNo, nil) == nil
}

// resets resets every stream.
func resets(code http2.ErrCode) func(*frameConn, uint32, int64) bool {
	return func(f *frameConn, stream uint32, _ int64) bool { return f.WriteRSTStream(stream, code) == nil }
}

var refuse = resets(http2.ErrCodeRefusedStream)

// Without a bound, net/http resends a request as long as the server allows it. A
// PROTOCOL_ERROR proves nothing about a request, and net/http still repeats a POST after
// it if the caller's request has GetBody, but not a stream.
//
//retrip:promise P6 P18
func TestHiddenSends_AreUnboundedInNetHTTP(t *testing.T) {
	const enough = 50
	for _, tt := range []struct {
		name, method string
		fault        func(*frameConn, uint32, int64) bool
		body         io.Reader
		once         bool
	}{
		{"GOAWAY", http.MethodGet, goAway, nil, false},
		{"PROTOCOL_ERROR, GetBody", http.MethodPost, resets(http2.ErrCodeProtocol), strings.NewReader("body"), false},
		{"PROTOCOL_ERROR, stream", http.MethodPost, resets(http2.ErrCodeProtocol), stream("body"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			server := newFrameServer(t, func(f *frameConn, stream uint32, number int64) bool {
				if number > enough {
					cancel()
				}
				return tt.fault(f, stream, number)
			})
			require.Error(t, testenv.Try(h2cBase(t), play.MustRequest(t, tt.method, server.URL, tt.body).WithContext(ctx)))
			if tt.once {
				assert.EqualValues(t, 1, server.requests.Load())
			} else {
				assert.Greater(t, server.requests.Load(), int64(enough))
			}
		})
	}
}

// The bound applies to each attempt, and an attempt that reaches it has failed: an
// idempotent request may be sent 10 times MaxAttempts in all, and one that a server may
// have processed 10 times.
//
//retrip:promise P6 P18
func TestHiddenSends_AreBoundedAndCounted(t *testing.T) {
	const most = 10 // sends of an attempt
	for _, tt := range []struct {
		name     string
		method   string
		attempts int64
		fault    func(*frameConn, uint32, int64) bool
		policy   retrip.Policy
		trace    bool
	}{
		{"an attempt has a timeout", http.MethodGet, 4, goAway, retrip.Policy{AttemptTimeout: time.Minute}, false},
		{"an attempt has a timeout", http.MethodPost, 1, goAway, retrip.Policy{AttemptTimeout: time.Minute}, false},
		{"it is watched", http.MethodGet, 4, goAway, retrip.Policy{}, true},
		{"it is watched", http.MethodPost, 1, goAway, retrip.Policy{}, true},
		{"PROTOCOL_ERROR", http.MethodPost, 1, resets(http2.ErrCodeProtocol), retrip.Policy{AttemptTimeout: time.Minute}, false},
	} {
		t.Run(tt.method+" "+tt.name, func(t *testing.T) {
			server := newFrameServer(t, tt.fault)
			metrics := retrip.NewMetrics()
			transport := &retrip.Transport{Base: h2cBase(t), Policy: tt.policy, Metrics: metrics}
			sends := 0
			if tt.trace {
				transport.Trace = &retrip.Trace{Done: func(e retrip.Event) { sends = e.Sends }}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := testenv.Try(transport, play.MustRequest(t, tt.method, server.URL, strings.NewReader("body")).WithContext(ctx))
			require.NoError(t, ctx.Err(), "it must end by the bound")
			t.Logf("%v; the server saw %d", err, server.requests.Load())
			require.ErrorContains(t, err, "more than 10 times")
			assert.LessOrEqual(t, server.requests.Load(), tt.attempts*(most+1))
			if tt.trace {
				assert.Equal(t, most+1, sends)
			}
			counted := play.Gather(t, metrics)["default"]
			assert.EqualValues(t, 1, counted["give_ups_total "+string(retrip.ReasonHiddenSends)])
			assert.GreaterOrEqual(t, counted["hidden_sends_total"], float64(tt.attempts*most))
		})
	}
}

// A server that goes away once, or refuses a stream once, has processed
// nothing: the next connection or stream answers the POST, which arrives once.
//
//retrip:promise P6
func TestHiddenSends_UnprocessedOnceIsRepeated(t *testing.T) {
	for name, fault := range map[string]func(*frameConn, uint32, int64) bool{"GOAWAY": goAway, "REFUSED_STREAM": refuse} {
		for kind, body := range map[string]io.Reader{"bytes": strings.NewReader("body"), "stream": io.LimitReader(strings.NewReader("body"), 4)} {
			t.Run(name+" "+kind, func(t *testing.T) {
				server := newFrameServer(t, func(f *frameConn, stream uint32, number int64) bool {
					if number == 1 {
						return fault(f, stream, number)
					}
					return f.respond(stream, "200") == nil
				})
				transport := &retrip.Transport{Base: h2cBase(t), Policy: retrip.Policy{AttemptTimeout: time.Minute}}
				resp, _ := play.Do(t, transport, play.MustRequest(t, http.MethodPost, server.URL, body))
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.EqualValues(t, 2, server.requests.Load())
			})
		}
	}
}

// An error code that doesn't prove anything doesn't make a POST repeatable.
//
//retrip:promise P6
func TestHiddenSends_OtherCodesAreNoProof(t *testing.T) {
	for _, code := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm} {
		t.Run(code.String(), func(t *testing.T) {
			server := newFrameServer(t, resets(code))
			transport := &retrip.Transport{Base: h2cBase(t), Policy: retrip.Policy{AttemptTimeout: time.Minute}}
			require.Error(t, testenv.Try(transport, play.MustRequest(t, http.MethodPost, server.URL, strings.NewReader("body"))))
			assert.EqualValues(t, 1, server.requests.Load())
		})
	}
}

// A Transport inside a Transport: attempts multiply, and Validate reports it.
func TestStackedRetriers(t *testing.T) {
	for name, stack := range map[string]func(*retrip.Transport) http.RoundTripper{
		"directly":        func(inner *retrip.Transport) http.RoundTripper { return inner },
		"under a wrapper": func(inner *retrip.Transport) http.RoundTripper { return &signer{Base: inner} },
	} {
		t.Run(name, func(t *testing.T) {
			down := play.Base(play.Err(errors.New("down")))
			policy := retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off}
			outer := &retrip.Transport{Base: stack(&retrip.Transport{Base: down, Policy: policy}), Policy: policy}
			require.ErrorContains(t, outer.Validate(), "their attempts multiply")
			require.Error(t, testenv.Try(outer, play.MustRequest(t, http.MethodGet, "http://example.com/", nil)))
			assert.Len(t, down.Reqs, 3*3)
		})
	}
}

// signer is a wrapper in the style of oauth2.Transport.
type signer struct{ Base http.RoundTripper }

func (s *signer) RoundTrip(req *http.Request) (*http.Response, error) { return s.Base.RoundTrip(req) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
