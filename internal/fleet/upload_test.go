// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A server may answer before it has read the request's body. If the account
// then forbids the retry, the upload goes on, and the caller can read the
// response, as after a refusal of the budget.
//
//retrip:promise P22
func TestFleet_ForbidsDuringAnUpload(t *testing.T) {
	const pieces, size = 32, 1 << 10
	// Over HTTP/2 net/http itself stops the upload after an early 503.
	for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
		for _, full := range []bool{false, true} {
			testenv.Bubble(t, fmt.Sprint(proto, " full ", full), func(t *testing.T) {
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
				tr := &retrip.Transport{Base: base, Policy: steady, Fleet: opened(t, fixedStore(0)), Metrics: &retrip.Metrics{}}
				want := retrip.ReasonFleetBudget
				if full {
					// The account allows the retry, but until its answer the
					// base has read more than is kept.
					want, tr.Policy.MaxReplayBody, tr.Fleet = retrip.ReasonBodyNotReplayable, 2*size, opened(t, fullStore(45*time.Millisecond))
				}
				sent := 0
				body := testenv.Reader(func(p []byte) (int, error) {
					if time.Sleep(10 * time.Millisecond); sent == pieces*size {
						return 0, io.EOF
					}
					n := min(len(p), size-sent%size)
					sent += n
					return n, nil
				})
				resp, text := play.Do(t, tr, play.MustRequest(t, http.MethodPut, s.URL, body))
				assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
				assert.Equal(t, "in hand", text)
				assert.Contains(t, play.Counted(t, tr.Metrics), fmt.Sprintf("give_ups_total{default,%s} 1", want))
				assert.EqualValues(t, pieces*size, got, "bytes that the server got")
			})
		}
	}
}
