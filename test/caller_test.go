// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// callerTransports are configurations of a Transport that make the first
// attempt in different ways.
var callerTransports = map[string]func(http.RoundTripper) *retrip.Transport{
	"zero":     func(base http.RoundTripper) *retrip.Transport { return &retrip.Transport{Base: base} },
	"timeouts": func(base http.RoundTripper) *retrip.Transport { return contractEnv{full: true}.transport(base) },
	"hooks": func(base http.RoundTripper) *retrip.Transport {
		return &retrip.Transport{Base: base, Trace: &retrip.Trace{}}
	},
}

// errOnly is a context that has an error but never ends. net/http relies on
// Done.
type errOnly struct{ context.Context }

func (errOnly) Done() <-chan struct{} { return nil }
func (errOnly) Err() error            { return context.Canceled }

//retrip:promise P3
func TestCaller_ContextThatNeverEnds(t *testing.T) {
	for setUp, transport := range callerTransports {
		play.Bubble(t, setUp, func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(play.Echo))
			play.Finish(t, do(t, transport(s.Transport()), play.MustRequest(t, "GET", s.URL, nil).WithContext(errOnly{t.Context()})))
		})
	}
}

// After one attempt, http.Client's Timeout yields the same error as without
// retrip: text, type and Timeout.
//
//retrip:promise P3
func TestCaller_ClientTimeout(t *testing.T) {
	for setUp, transport := range callerTransports {
		for _, proto := range play.Protos {
			for _, kind := range []string{"GET", "POST", "POST of a stream"} {
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", setUp, proto, kind), func(t *testing.T) {
					s := memhttp.NewServer(t, proto, http.HandlerFunc(hang))
					send := func(rt http.RoundTripper) *url.Error {
						method, body := "GET", io.Reader(nil)
						switch kind {
						case "POST":
							method, body = "POST", strings.NewReader("payload")
						case "POST of a stream":
							method, body = "POST", play.Stream([]byte("payload"))
						}
						_, err := (&http.Client{Transport: rt, Timeout: time.Second}).Do(play.MustRequest(t, method, s.URL, body))
						var u *url.Error
						require.ErrorAs(t, err, &u)
						return u
					}
					// In virtual time the client's clock stands still at its
					// deadline, and the client names its Timeout only after it.
					const named = " (Client.Timeout exceeded while awaiting headers)"
					want := strings.TrimSuffix(send(s.Transport()).Error(), named) + named
					for range 5 {
						start := time.Now()
						got := send(transport(s.Transport()))
						assert.Less(t, time.Since(start), 1010*time.Millisecond)
						assert.Equal(t, want, got.Error())
						assert.Equal(t, "*http.timeoutError", fmt.Sprintf("%T", got.Err))
						assert.True(t, got.Timeout())
						assert.ErrorIs(t, got, context.DeadlineExceeded)
						synctest.Wait()
					}
				})
			}
		}
	}
}

// A failure at the same instant as one of retrip's timeouts is not hidden by
// it.
//
//retrip:promise P17
func TestCaller_TimeoutHidesNothing(t *testing.T) {
	lost := errors.New("lost")
	for _, tt := range []struct {
		name   string
		policy retrip.Policy
	}{
		{"AttemptTimeout", retrip.Policy{AttemptTimeout: time.Second, MaxAttempts: 1}},
		{"Deadline", retrip.Policy{Deadline: time.Second, MaxAttempts: 1}},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				return nil, lost
			})
			_, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(play.Request(t, "GET", nil))
			assert.ErrorIs(t, err, lost)
			assert.ErrorIs(t, err, context.DeadlineExceeded)
			assert.ErrorContains(t, err, tt.name)
		})
	}
}

// hang reads a request and never answers.
func hang(_ http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}
