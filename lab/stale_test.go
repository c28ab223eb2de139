// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// An HTTP/1 server closes idle connections just as the next POST with a stream
// is sent. There is rarely proof that such a POST wasn't processed. The wrapped
// client loses no more of them than the bare one, and none runs twice.
//
//retrip:promise P6
func TestStaleConnections_StreamedPOSTs(t *testing.T) {
	const (
		idle  = time.Millisecond
		posts = 1500
	)
	var mu sync.Mutex
	served := map[string]int{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err == nil && len(body) == len("payload") {
			mu.Lock()
			served[r.Header.Get("X-Client")]++
			mu.Unlock()
		}
	}))
	server.Config.IdleTimeout = idle
	server.Start()
	defer server.Close()
	clients := map[string]http.RoundTripper{"bare": &http.Transport{}, "wrapped": &retrip.Transport{Base: &http.Transport{}, Policy: stubborn}}
	told := map[string]int{}
	for i := range posts {
		for name, client := range clients {
			req := play.MustRequest(t, http.MethodPost, server.URL, stream("payload"))
			req.ContentLength = int64(len("payload"))
			req.Header.Set("X-Client", name)
			if testenv.Try(client, req) == nil {
				told[name]++
			}
		}
		// The other client's request counts towards the idle time.
		for began := time.Now(); time.Since(began) < idle-time.Duration(i%40)*5*time.Microsecond; {
		}
	}
	server.Close() // no more requests are served
	t.Logf("of %d: told of success bare %d, wrapped %d; served bare %d, wrapped %d", posts, told["bare"], told["wrapped"], served["bare"], served["wrapped"])
	assert.Less(t, told["bare"], posts, "without connections that end under a request, the test proves nothing")
	lost := func(name string) int { return posts - told[name] }
	assert.LessOrEqual(t, lost("wrapped"), lost("bare")+lost("bare")/3+50)
	// A POST that was served but not answered is lost; none is served twice.
	assert.LessOrEqual(t, served["wrapped"], posts)
}

// http.Client.Timeout gives the same error with retrip and without, in its text
// and in Timeout, every time.
//
//retrip:promise P3
func TestClientTimeout(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	for name, transport := range map[string]http.RoundTripper{
		"bare": base, "wrapped": &retrip.Transport{Base: base},
		"with timeouts": &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			client := &http.Client{Transport: transport, Timeout: 5 * time.Millisecond}
			named := 0
			for range 40 {
				_, err := client.Get(server.URL)
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, err, &timeout)
				assert.True(t, timeout.Timeout())
				if name == "bare" {
					continue // which has a different text if there is no connection yet
				}
				text := `Get "` + server.URL + `": context deadline exceeded`
				if err.Error() == text+" (Client.Timeout exceeded while awaiting headers)" {
					named++
				} else {
					// On a busy machine, the client may be late to say that it was its Timeout.
					assert.EqualError(t, err, text)
				}
			}
			if name != "bare" {
				assert.GreaterOrEqual(t, named, 20)
			}
		})
	}
}
