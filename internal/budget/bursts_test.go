// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget_test

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// If connections break, all requests on them are repeated, however many: the budget waits
// until it knows whether the host is well. If it isn't, hardly any is.
//
//retrip:promise P14
func TestBursts_LostConnections(t *testing.T) {
	for _, tt := range []struct {
		requests    int
		dead, hangs bool // what the host is afterwards
		retries     int
	}{
		{20, false, false, 20},
		{60, false, false, 60},
		{200, false, false, 200},
		{testenv.Size(600, 2000), false, false, 2000},
		{200, true, false, 20},
		{200, false, true, 200},
	} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2} {
			play.Bubble(t, fmt.Sprintf("%v/%+v", proto, tt), func(t *testing.T) {
				var mu sync.Mutex
				var conns []*memhttp.Conn
				sends, lost := 0, make(chan struct{})
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					sends++
					c, first := memhttp.RequestConn(r), sends <= tt.requests
					if first && !slices.Contains(conns, c) {
						conns = append(conns, c)
					}
					mu.Unlock()
					switch {
					case first:
						<-lost
					case tt.dead:
						c.Reset()
					case tt.hangs:
						<-r.Context().Done()
					default:
						time.Sleep(20 * time.Millisecond)
					}
				}))
				policy := retrip.Policy{Budget: 5}
				if tt.hangs {
					policy.AttemptTimeout = 10 * time.Second
				}
				tr := &retrip.Transport{Base: s.Transport(), Policy: policy}
				saved := 0
				var requests sync.WaitGroup
				for range tt.requests {
					requests.Go(func() {
						resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, s.URL, nil))
						if err == nil {
							play.Finish(t, resp)
							mu.Lock()
							saved++
							mu.Unlock()
						}
					})
				}
				time.Sleep(time.Second)
				mu.Lock()
				for _, c := range conns {
					c.Reset()
				}
				mu.Unlock()
				close(lost)
				requests.Wait()
				mu.Lock()
				defer mu.Unlock()
				t.Logf("%d of %d saved with %d sends over %d connections", saved, tt.requests, sends, len(conns))
				assert.LessOrEqual(t, sends, tt.requests+tt.retries)
				if !tt.dead && !tt.hangs {
					assert.Equal(t, tt.requests, saved)
					assert.Empty(t, play.Held(tr), "retries that succeed cost nothing")
				}
			})
		}
	}
}
