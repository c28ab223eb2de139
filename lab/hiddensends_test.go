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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
)

// goAway refuses every request by closing its connection with GOAWAY.
func goAway(f *frameConn, _ uint32, _ int64) bool {
	return f.WriteGoAway(0, http2.ErrCodeNo, nil) == nil
}

// refuse refuses every stream.
func refuse(f *frameConn, stream uint32, _ int64) bool {
	return f.WriteRSTStream(stream, http2.ErrCodeRefusedStream) == nil
}

// Without a bound, net/http resends a request as long as the server allows it.
//
//retrip:promise P18
func TestHiddenSends_AreUnboundedInNetHTTP(t *testing.T) {
	const enough = 50
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	server := newFrameServer(t, func(f *frameConn, stream uint32, number int64) bool {
		if number > enough {
			cancel()
		}
		return goAway(f, stream, number)
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	require.NoError(t, err)
	_, err = h2cBase(t).RoundTrip(req)
	require.Error(t, err)
	assert.Greater(t, server.requests.Load(), int64(enough))
}

// The bound applies to each attempt, and an attempt that reaches it has failed:
// an idempotent request may be sent 10 times MaxAttempts in all.
//
//retrip:promise P18
func TestHiddenSends_AreBoundedAndCounted(t *testing.T) {
	for method, attempts := range map[string]int64{http.MethodGet: 4, http.MethodPost: 1} {
		for _, tt := range []struct {
			name   string
			policy retrip.Policy
			trace  bool
		}{
			{"an attempt has a timeout", retrip.Policy{AttemptTimeout: time.Minute}, false},
			{"it is watched", retrip.Policy{}, true},
		} {
			const most = 10 // sends of an attempt
			t.Run(method+" "+tt.name, func(t *testing.T) {
				server := newFrameServer(t, goAway)
				base := h2cBase(t)
				metrics := retrip.NewMetrics()
				transport := &retrip.Transport{Base: base, Policy: tt.policy, Metrics: metrics}
				sends := 0
				if tt.trace {
					transport.Trace = &retrip.Trace{Done: func(e retrip.Event) { sends = e.Sends }}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				req, err := http.NewRequestWithContext(ctx, method, server.URL, strings.NewReader("body"))
				require.NoError(t, err)
				_, err = transport.RoundTrip(req)
				require.Error(t, err)
				require.NoError(t, ctx.Err(), "it must end by the bound")
				t.Logf("%v; the server saw %d", err, server.requests.Load())
				assert.Contains(t, err.Error(), "more than 10 times")
				assert.LessOrEqual(t, server.requests.Load(), attempts*(most+1))
				if tt.trace {
					assert.Equal(t, most+1, sends)
				}
				assert.Equal(t, 1, give(t, metrics, retrip.ReasonHiddenSends))
				assert.GreaterOrEqual(t, hidden(t, metrics), attempts*most)
			})
		}
	}
}

// A server that goes away once, or refuses a stream once, has processed
// nothing: the next connection or stream answers the POST, which arrives once.
//
//retrip:promise P6
func TestHiddenSends_UnprocessedOnceIsRepeated(t *testing.T) {
	for name, fault := range map[string]func(*frameConn, uint32, int64) bool{"GOAWAY": goAway, "REFUSED_STREAM": refuse} {
		for _, kind := range []string{"bytes", "stream"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				server := newFrameServer(t, func(f *frameConn, stream uint32, number int64) bool {
					if number == 1 {
						return fault(f, stream, number)
					}
					return f.respond(stream, "200") == nil
				})
				transport := &retrip.Transport{Base: h2cBase(t), Policy: retrip.Policy{AttemptTimeout: time.Minute}}
				var body io.Reader = strings.NewReader("body")
				if kind == "stream" {
					body = io.LimitReader(body, 4)
				}
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
				require.NoError(t, err)
				resp, err := transport.RoundTrip(req)
				require.NoError(t, err)
				resp.Body.Close()
				assert.Equal(t, http.StatusOK, resp.StatusCode)
				assert.Equal(t, int64(2), server.requests.Load())
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
			server := newFrameServer(t, func(f *frameConn, stream uint32, _ int64) bool {
				return f.WriteRSTStream(stream, code) == nil
			})
			transport := &retrip.Transport{Base: h2cBase(t), Policy: retrip.Policy{AttemptTimeout: time.Minute}}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("body"))
			require.NoError(t, err)
			_, err = transport.RoundTrip(req)
			require.Error(t, err)
			assert.Equal(t, int64(1), server.requests.Load())
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
			arrivals := 0
			down := roundTripper(func(req *http.Request) (*http.Response, error) {
				arrivals++
				return nil, errors.New("down")
			})
			policy := retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off}
			outer := &retrip.Transport{Base: stack(&retrip.Transport{Base: down, Policy: policy}), Policy: policy}
			require.ErrorContains(t, outer.Validate(), "their attempts multiply")
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://example.com/", nil)
			require.NoError(t, err)
			_, err = outer.RoundTrip(req)
			require.Error(t, err)
			assert.Equal(t, 3*3, arrivals)
		})
	}
}

// signer is a wrapper in the style of oauth2.Transport.
type signer struct{ Base http.RoundTripper }

func (s *signer) RoundTrip(req *http.Request) (*http.Response, error) { return s.Base.RoundTrip(req) }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// give returns how many requests were given up for the reason.
func give(t *testing.T, m *retrip.Metrics, reason retrip.Reason) int {
	return int(series(t, m, "retrip_give_ups_total", "reason", string(reason)))
}

// hidden returns how many transparent retries were counted.
func hidden(t *testing.T, m *retrip.Metrics) int64 {
	return int64(series(t, m, "retrip_hidden_sends_total", "policy", "default"))
}

// series returns the value of the counter whose label has the value.
func series(t *testing.T, m *retrip.Metrics, name, label, value string) float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	require.NoError(t, reg.Register(m))
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, pair := range metric.GetLabel() {
				if family.GetName() == name && pair.GetName() == label && pair.GetValue() == value {
					return metric.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}
