// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// ask gets the answer at url.
func ask(t *testing.T, rt http.RoundTripper, method, url, body string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, answer := play.Do(t, rt, play.MustRequest(t, method, url, strings.NewReader(body)).WithContext(ctx))
	return answer
}

// A request over a frozen connection is answered over another one, after the delay and
// one more exchange, without any timeout. If the connection stays frozen, that costs later
// requests nothing.
//
//retrip:promise P21
func TestHedge_FrozenConnection(t *testing.T) {
	for _, p := range Protos {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			server := Serve(p, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				<-time.After(2 * time.Millisecond)
				_, _ = io.WriteString(w, "answer")
			}))
			t.Cleanup(server.Close)
			// On a busy machine, the hedges may be spent when the connection freezes, or late
			// themselves.
			froze := func() bool {
				box := newIcebox(t, server.Listener.Addr().String())
				var last retrip.Event
				tr := &retrip.Transport{Base: Base(p, server), Policy: retrip.Policy{Hedge: 0.2}, Trace: &retrip.Trace{Hedge: func(e retrip.Event) { last = e }}}
				defer tr.CloseIdleConnections()
				url := p.Scheme() + "://" + box.Addr()
				for range 100 {
					assert.Equal(t, "answer", ask(t, tr, "GET", url, ""))
				}
				box.freeze()
				last = retrip.Event{}
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				resp, err := tr.RoundTrip(play.MustRequest(t, http.MethodGet, url, nil).WithContext(ctx))
				if err != nil {
					return false
				}
				assert.Equal(t, "answer", play.Finish(t, resp))
				won := last
				t.Logf("%q: %v after a delay of %v", won.Reason, won.Elapsed-won.Wait, won.Wait)
				for i := range 100 {
					assert.Equal(t, "answer", ask(t, tr, []string{"GET", "POST"}[i%2], url, ""))
				}
				return won.Reason == "won" && won.Elapsed-won.Wait < 50*time.Millisecond
			}
			for range 10 {
				if froze() {
					return
				}
			}
			t.Error("no request got its answer from a hedge in time")
		})
	}
}

// With HTTP/3 as the base, a hedge is a second stream of the same connection.
//
//retrip:promise P21
func TestHedge_HTTP3(t *testing.T) {
	var late, posts atomic.Int64
	url, base := serve3(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method == http.MethodPost {
			posts.Add(1)
		}
		if r.URL.Path == "/late" && late.Add(1)%2 == 1 {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(time.Second):
			}
		}
		_, _ = io.WriteString(w, "answer to "+string(body))
	}))
	var results []string
	tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Hedge: 0.2}, Trace: &retrip.Trace{Hedge: func(e retrip.Event) { results = append(results, string(e.Reason)) }}}
	for range 10 { // on a busy machine, the hedges may be spent
		for range 100 {
			assert.Equal(t, "answer to ", ask(t, tr, "GET", url, ""))
		}
		results = nil
		late.Store(0)
		assert.Equal(t, "answer to ", ask(t, tr, "GET", url+"/late", ""))
		if len(results) > 0 {
			break
		}
	}
	assert.Equal(t, []string{"won"}, results)
	late.Store(0)
	for range 4 {
		assert.Equal(t, "answer to body", ask(t, tr, "POST", url+"/late", "body"))
	}
	assert.EqualValues(t, 4, posts.Load(), "a POST has no copy")
}
