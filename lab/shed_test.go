// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// recipe returns the code block of docs/shed.md in the given language, with
// replacements applied.
func recipe(t *testing.T, language string, replace ...string) string {
	t.Helper()
	docs, err := os.ReadFile("../docs/shed.md")
	require.NoError(t, err)
	match := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindSubmatch(docs)
	require.NotNil(t, match)
	text := string(match[1])
	for i := 0; i < len(replace); i += 2 {
		require.Contains(t, text, replace[i])
		text = strings.ReplaceAll(text, replace[i], replace[i+1])
	}
	return text
}

// occupied is a server whose requests end on command.
type occupied struct {
	arrived chan struct{}
	end     chan struct{}
}

func occupy() *occupied {
	return &occupied{arrived: make(chan struct{}, 100), end: make(chan struct{})}
}

func (o *occupied) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.RequestURI() {
	case "/own": // a failure of its own
		w.WriteHeader(http.StatusServiceUnavailable)
	case "/hold", "/healthz?hold":
		o.arrived <- struct{}{}
		<-o.end
	}
}

// shedClient is a client of a server that sheds load.
type shedClient struct {
	t        *testing.T
	url      string
	attempts int
}

// get makes a request as a client of a fleet with retries does, as a first
// attempt or as a retry.
func (c *shedClient) get(path, attempt string) *http.Response {
	c.t.Helper()
	c.attempts = 0
	base := daemonBase(c.t, HTTP1)
	transport := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, Trace: &retrip.Trace{
		Attempt: func(retrip.Event) { c.attempts++ },
	}}
	req := play.MustRequest(c.t, http.MethodGet, c.url+path, nil)
	if attempt != "" {
		req.Header.Set("Retry-Attempt", attempt)
	}
	resp, _ := play.Do(c.t, transport, req)
	return resp
}

// refused checks that a request is refused with X-Should-Retry: false.
func (c *shedClient) refused(path, attempt string) {
	c.t.Helper()
	resp := c.get(path, attempt)
	assert.Equal(c.t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(c.t, []string{"false"}, resp.Header["X-Should-Retry"])
	assert.Empty(c.t, resp.Header["Retry-After"])
	assert.Equal(c.t, 1, c.attempts, "the client obeys")
}

// eventually checks that done becomes true. Until then a proxy may still count
// the request before: it forgets one a little after the client has the response.
func (c *shedClient) eventually(done func() bool) {
	c.t.Helper()
	assert.True(c.t, within(10*time.Second, done))
}

// served checks that a request is served.
func (c *shedClient) served(path, attempt string) {
	c.t.Helper()
	c.eventually(func() bool { return c.get(path, attempt).StatusCode == http.StatusOK })
}

// own checks that a failure of the backend itself isn't marked as final.
func (c *shedClient) own() {
	c.t.Helper()
	c.eventually(func() bool {
		resp := c.get("/own", "")
		return resp.StatusCode == http.StatusServiceUnavailable && resp.Header["X-Should-Retry"] == nil && c.attempts == 4
	})
}

// hold makes n long-running requests and returns when the server has them.
func (c *shedClient) hold(o *occupied, path string, n int, wg *sync.WaitGroup) {
	client := &http.Client{Transport: daemonBase(c.t, HTTP1)}
	for range n {
		wg.Go(func() {
			c.eventually(func() bool {
				resp, err := client.Get(c.url + path)
				if err != nil {
					return false
				}
				resp.Body.Close()
				return resp.StatusCode == http.StatusOK
			})
		})
	}
	for range n {
		select {
		case <-o.arrived:
		case <-time.After(20 * time.Second):
			require.Fail(c.t, "the server hasn't got a request")
		}
	}
}

func TestShed_NginxRecipe(t *testing.T) {
	t.Parallel()
	o := occupy()
	upstream := Serve(HTTP1, o)
	t.Cleanup(upstream.Close)
	addr, err := FreeAddr()
	require.NoError(t, err)
	config := `
daemon off;
worker_processes 2;
pid $DIR/pid;
error_log $DIR/error.log crit;
events { worker_connections 512; }
http {
	access_log off;
	client_body_temp_path $DIR/a; proxy_temp_path $DIR/b; fastcgi_temp_path $DIR/c; uwsgi_temp_path $DIR/d; scgi_temp_path $DIR/e;
` + recipe(t, "nginx", "listen 80", "listen "+addr, "127.0.0.1:8080", upstream.Listener.Addr().String(), "open 110", "open 3", "open 30", "open 1", "checks 16", "checks 1") + "}\n"
	startDaemon(t, "nginx", config, addr, "-c", "$DIR/config", "-p", "$DIR/")
	c := &shedClient{t: t, url: "http://" + addr}

	c.served("/", "")
	c.served("/", "2")
	c.own()
	var wg sync.WaitGroup
	c.hold(o, "/hold", 1, &wg)
	for _, attempt := range []string{"2", "10", "007"} {
		c.refused("/", attempt)
	}
	for _, attempt := range []string{"", "1", "0", "two", "-2"} {
		c.served("/", attempt)
	}
	c.hold(o, "/hold", 2, &wg)
	c.refused("/", "")
	c.served("/healthz", "")
	resp, err := daemonBase(t, HTTP1).RoundTrip(play.MustRequest(t, http.MethodPost, c.url+"/healthz", strings.NewReader("x")))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, http.StatusForbidden, resp.StatusCode, "nothing but health checks passes the limit")
	c.hold(o, "/healthz?hold", 1, &wg)
	c.refused("/healthz", "")
	close(o.end)
	wg.Wait()
	c.served("/", "2")
}

func TestShed_HAProxyRecipe(t *testing.T) {
	t.Parallel()
	o := occupy()
	upstream := Serve(HTTP1, o)
	t.Cleanup(upstream.Close)
	addr, err := FreeAddr()
	require.NoError(t, err)
	config := `
global
	maxconn 200
	stats socket $DIR/admin mode 600 level admin
defaults
	mode http
	timeout connect 2s
	timeout client 10s
	timeout server 10s
` + recipe(t, "haproxy", "bind :80", "bind "+addr, "127.0.0.1:8080", upstream.Listener.Addr().String(), "queue(app) ge 20", "queue(app) ge 1", "maxconn 10", "maxconn 2", "timeout queue 100ms", "timeout queue 5s")
	d := startDaemon(t, "haproxy", config, addr, "-db", "-f", "$DIR/config")
	c := &shedClient{t: t, url: "http://" + addr}

	c.served("/", "")
	c.served("/", "2")
	c.own()
	var wg sync.WaitGroup
	c.hold(o, "/hold", 2, &wg)
	start := time.Now()
	queued := make(chan struct{})
	go func() {
		defer close(queued)
		c := *c
		c.refused("/", "")
	}()
	require.True(t, within(5*time.Second, func() bool { return strings.Contains(d.admin("show stat"), "app,BACKEND,1,") }), "one waits")
	for _, attempt := range []string{"2", "10", "007"} {
		c.refused("/", attempt)
	}
	assert.Less(t, time.Since(start), 5*time.Second, "a retry doesn't wait")
	<-queued
	assert.GreaterOrEqual(t, time.Since(start), 5*time.Second, "a first attempt waits")
	close(o.end)
	wg.Wait()
	c.served("/", "2")

	d.admin("disable server app/one")
	resp := c.get("/", "")
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Empty(t, resp.Header["X-Should-Retry"], "no server is up: another attempt may succeed")
	assert.Equal(t, 4, c.attempts)
}
