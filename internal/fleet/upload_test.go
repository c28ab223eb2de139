// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

// A server may answer before it has read the request's body. If the account
// then forbids the retry, the upload goes on, and the caller can read the
// response, as after a refusal of the budget.
//
//retrip:promise P22
func TestFleet_ForbidsDuringAnUpload(t *testing.T) {
	// Over HTTP/2 net/http itself stops the upload after an early 503.
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprint(proto, " full ", full), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const pieces, size = 32, 1 << 10
					var got int64
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						control := http.NewResponseController(w)
						assert.NoError(t, control.EnableFullDuplex())
						w.WriteHeader(http.StatusServiceUnavailable)
						assert.NoError(t, control.Flush())
						got, _ = io.Copy(io.Discard, r.Body)
						_, _ = io.WriteString(w, "in hand")
					}))
					base := s.Transport()
					defer base.CloseIdleConnections()
					tr := &retrip.Transport{Base: base, Policy: steady, Fleet: opened(t, fixedStore(0))}
					want, reason := retrip.ReasonFleetBudget, retrip.Reason("")
					tr.Trace = &retrip.Trace{GiveUp: func(e retrip.Event) { reason = e.Reason }}
					if full {
						want = retrip.ReasonBodyNotReplayable
						// The account allows the retry, but until its answer the
						// base has read more than is kept.
						tr.Policy.MaxReplayBody = 2 * size
						tr.Fleet = opened(t, storeFunc(func(_ context.Context, _ string, _, size float64) (float64, error) {
							time.Sleep(45 * time.Millisecond)
							return size, nil
						}))
					}
					body, pipe := io.Pipe()
					var upload sync.WaitGroup
					upload.Go(func() {
						for range pieces {
							time.Sleep(10 * time.Millisecond)
							if _, err := pipe.Write(make([]byte, size)); err != nil {
								return
							}
						}
						pipe.Close()
					})
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL, body)
					require.NoError(t, err)
					resp, err := tr.RoundTrip(req)
					require.NoError(t, err)
					assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
					assert.Equal(t, want, reason)
					text, err := io.ReadAll(resp.Body)
					assert.NoError(t, err)
					assert.Equal(t, "in hand", string(text))
					assert.NoError(t, resp.Body.Close())
					upload.Wait()
					assert.EqualValues(t, pieces*size, got, "bytes that the server got")
				})
			})
		}
	}
}
