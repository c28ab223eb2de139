// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

//retrip:promise P22
func TestFleet_AsksWithinTheWait(t *testing.T) {
	for _, test := range []struct {
		delay, backoff, want time.Duration
		attempts             int
	}{
		{10 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond, 2}, // the wait is as long as without a retrip.Fleet
		{30 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 2},   // the answer takes longer than the wait
		{300 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 2},  // a request waits for at most this long
		{300 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond, 2},
	} {
		t.Run(fmt.Sprint(test.delay, test.backoff), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := opened(t, storeFunc(func(ctx context.Context, _ string, _, size float64) (float64, error) {
					time.Sleep(test.delay)
					return size, ctx.Err()
				}))
				var at []time.Duration
				began := time.Now()
				tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: test.backoff, Jitter: retrip.NoJitter}},
					Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						at = append(at, time.Since(began))
						return answer(r, 503), nil
					})}
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err)
				assert.Equal(t, []time.Duration{0, test.want}, at)
				time.Sleep(time.Second)
			})
		})
	}
}

// The answer takes longer than the wait that the server asked for, which is the
// server's nevertheless.
func TestFleet_AsksWithinTheServersWait(t *testing.T) {
	for _, test := range []struct {
		name, header string
		want         bool
	}{
		{"the response asks", "5", true},
		{"nobody asks", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fleet := opened(t, storeFunc(func(ctx context.Context, _ string, _, size float64) (float64, error) {
					time.Sleep(30 * time.Millisecond)
					return size, ctx.Err()
				}))
				var got []bool
				tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Dialects: []string{"retry-after-ms"}, Backoff: retrip.Backoff{Base: 5 * time.Millisecond, Jitter: retrip.NoJitter}},
					Trace: &retrip.Trace{Retry: func(e retrip.Event) {
						assert.Zero(t, e.Wait)
						got = append(got, e.FromServer)
					}},
					Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						resp := answer(r, 503)
						if test.header != "" {
							resp.Header.Set("Retry-After-Ms", test.header)
						}
						return resp, nil
					})}
				_, err := get(t, tr, "http://a.example/")
				require.NoError(t, err)
				assert.Equal(t, []bool{test.want}, got)
				time.Sleep(time.Second)
			})
		})
	}
}

//retrip:promise P22
func TestFleet_DeadlineBoundsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := opened(t, storeFunc(hangingStore))
		var at []time.Duration
		began := time.Now()
		tr := &retrip.Transport{Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}, Deadline: 20 * time.Millisecond},
			Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if at = append(at, time.Since(began)); len(at) == 1 {
					time.Sleep(5 * time.Millisecond)
				}
				return answer(r, 503), nil
			})}
		_, err := get(t, tr, "http://a.example/")
		require.NoError(t, err)
		assert.Equal(t, []time.Duration{0, 15 * time.Millisecond}, at, "there is room for the attempt")
	})
}

//retrip:promise P22
func TestFleet_CallerGoesWhileAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fleet := opened(t, storeFunc(hangingStore))
		closed := false
		tr := &retrip.Transport{Fleet: fleet, Policy: steady, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			resp := answer(r, 503)
			resp.Body = &closeRecorder{closed: &closed}
			return resp, nil
		})}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		time.AfterFunc(20*time.Millisecond, cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://a.example/", nil)
		require.NoError(t, err)
		began := time.Now()
		_, err = tr.RoundTrip(req)
		assert.ErrorIs(t, err, context.Canceled)
		assert.Equal(t, 20*time.Millisecond, time.Since(began))
		var e *retrip.Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, retrip.ReasonCanceled, e.Reason)
		assert.Equal(t, 503, e.StatusCode)
		assert.True(t, closed, "the response in hand is closed")
		state := play.Must(tr.HostState("a.example:80"))
		assert.Equal(t, state.Size, state.Tokens)
	})
}

type closeRecorder struct {
	closed *bool
}

func (*closeRecorder) Read([]byte) (int, error) { return 0, io.EOF }

func (c *closeRecorder) Close() error {
	*c.closed = true
	return nil
}
