// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

// stallingServer sends half of its text and stalls. The next silent requests get
// no response at all; those after them get the rest, by the function rest.
func stallingServer(t *testing.T, proto memhttp.Proto, silent int32, rest http.HandlerFunc) *memhttp.Server {
	var n atomic.Int32
	return memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch i := n.Add(1); {
		case i == 1:
			w.Header().Set("ETag", `"a"`)
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "01234")
			flush(w)
		case i > 1+silent:
			w.Header().Set("ETag", `"a"`)
			w.Header().Set("Content-Range", "bytes 5-9/10")
			w.Header().Set("Content-Length", "5")
			rest(w, r)
			return
		}
		<-r.Context().Done()
	}))
}

func wholeRest(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusPartialContent)
	_, _ = io.WriteString(w, "56789")
}

// slowRest takes 900 ms for each byte.
func slowRest(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusPartialContent)
	flush(w)
	for c := range strings.SplitSeq("56789", "") {
		time.Sleep(900 * time.Millisecond)
		_, _ = io.WriteString(w, c)
		flush(w)
	}
}

// With BodyIdle, a continuation also gets a response in time, or ends.
func TestBodyIdle_SilentContinuation(t *testing.T) {
	for _, proto := range protos {
		for _, attemptTimeout := range []time.Duration{0, time.Second / 2, time.Hour} {
			for _, silent := range []int32{0, 2, 1000} {
				bubbled(t, fmt.Sprintf("%s/AttemptTimeout %s/%d", proto, attemptTimeout, silent), func(t *testing.T) {
					s := stallingServer(t, proto, silent, wholeRest)
					tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{
						Resume: retrip.On, BodyIdle: time.Second, AttemptTimeout: attemptTimeout, Budget: retrip.Unlimited,
						Backoff: retrip.Backoff{Base: time.Nanosecond, Cap: time.Nanosecond},
					}}
					defer tr.CloseIdleConnections()
					resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
					require.NoError(t, err)
					defer resp.Body.Close()
					began := time.Now()
					got, err := io.ReadAll(resp.Body)
					assert.LessOrEqual(t, time.Since(began), 1500*time.Millisecond+time.Duration(min(silent, 3))*time.Second+time.Millisecond)
					if silent == 1000 {
						assert.Equal(t, "01234", string(got))
						assert.ErrorContains(t, err, "BodyIdle")
						return
					}
					require.NoError(t, err)
					assert.Equal(t, "0123456789", string(got))
				})
			}
		}
	}
}

// The bound on the response to a continuation doesn't cut its body, nor what
// Classify waits for.
func TestBodyIdle_SlowContinuation(t *testing.T) {
	slow := func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(900 * time.Millisecond)
		slowRest(w, r)
	}
	for name, classify := range map[string]func(*http.Request, *http.Response, error) retrip.Verdict{"": nil, "Peek": peeks} {
		for _, proto := range protos {
			bubbled(t, name+"/"+proto.String(), func(t *testing.T) {
				s := stallingServer(t, proto, 0, slow)
				tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{Resume: retrip.On, BodyIdle: time.Second, Classify: classify}}
				defer tr.CloseIdleConnections()
				resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
				require.NoError(t, err)
				got, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "0123456789", string(got))
				require.NoError(t, resp.Body.Close())
				synctest.Wait()
			})
		}
	}
}

// AttemptTimeout bounds what Classify waits for, in a continuation too.
func TestBodyIdle_PeekOfAContinuation(t *testing.T) {
	for _, idle := range []time.Duration{time.Second, 3 * time.Second} {
		bubbled(t, idle.String(), func(t *testing.T) {
			s := stallingServer(t, memhttp.HTTP1, 0, slowRest)
			var peeked []time.Duration
			tr := &retrip.Transport{Base: s.Transport(), Policy: retrip.Policy{
				Resume: retrip.On, BodyIdle: idle, AttemptTimeout: 2 * time.Second, MaxAttempts: 3,
				Classify: func(req *http.Request, resp *http.Response, err error) retrip.Verdict {
					if resp == nil || resp.StatusCode != http.StatusPartialContent {
						return retrip.ByRule
					}
					began := time.Now()
					defer func() { peeked = append(peeked, time.Since(began)) }()
					return peeks(req, resp, err)
				},
			}}
			defer tr.CloseIdleConnections()
			resp, err := tr.RoundTrip(mustRequest(t, "GET", s.URL, nil))
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			assert.ErrorContains(t, err, "AttemptTimeout")
			require.NoError(t, resp.Body.Close())
			require.NotEmpty(t, peeked)
			for _, d := range peeked {
				assert.LessOrEqual(t, d, 2*time.Second)
			}
		})
	}
}
