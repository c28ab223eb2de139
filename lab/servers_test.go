// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// daemon is a server from a Debian package that runs in its own directory for a
// test.
type daemon struct {
	t    *testing.T
	dir  string
	path string
	args []string
	cmd  *exec.Cmd
}

// startDaemon writes a configuration and starts the program with it. It skips
// the test if the program isn't installed. In the configuration and the
// arguments, $DIR stands for the directory.
func startDaemon(t *testing.T, program, config string, addr string, args ...string) *daemon {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Skipf("%s is not installed (apt-get install nginx-light haproxy lighttpd python3)", program)
	}
	d := &daemon{t: t, dir: t.TempDir(), path: path}
	write := func(name, content string) {
		require.NoError(t, os.WriteFile(filepath.Join(d.dir, name), []byte(strings.ReplaceAll(content, "$DIR", d.dir)), 0o644))
	}
	write("config", config)
	cert, key := pair(t)
	write("cert.pem", cert)
	write("key.pem", key)
	for _, arg := range args {
		d.args = append(d.args, strings.ReplaceAll(arg, "$DIR", d.dir))
	}
	d.start(addr)
	t.Cleanup(d.stop)
	return d
}

// start runs the program and waits until it listens.
func (d *daemon) start(addr string) {
	d.t.Helper()
	d.cmd = exec.Command(d.path, d.args...)
	log, err := os.OpenFile(filepath.Join(d.dir, "out"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	require.NoError(d.t, err)
	defer log.Close()
	d.cmd.Stdout, d.cmd.Stderr = log, log
	require.NoError(d.t, d.cmd.Start())
	up := within(10*time.Second, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	out, _ := os.ReadFile(log.Name())
	require.True(d.t, up, "%s does not listen: %s", d.path, out)
}

// stop ends the program as in a restart.
func (d *daemon) stop() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	_ = d.cmd.Wait()
	d.cmd = nil
}

// admin sends a command to HAProxy's socket and returns the answer.
func (d *daemon) admin(command string) string {
	c, err := net.Dial("unix", filepath.Join(d.dir, "admin"))
	require.NoError(d.t, err)
	defer c.Close()
	_, err = io.WriteString(c, command+"\n")
	require.NoError(d.t, err)
	answer, err := io.ReadAll(c)
	require.NoError(d.t, err)
	return string(answer)
}

// pair returns httptest's certificate and key for 127.0.0.1.
func pair(t *testing.T) (cert, key string) {
	s := Serve(HTTP2, http.NotFoundHandler())
	defer s.Close()
	own := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	require.NoError(t, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// daemonBase returns a new base transport for a daemon that speaks p.
func daemonBase(t *testing.T, p Proto) *http.Transport {
	base := &http.Transport{
		Protocols: p.Protocols(), MaxIdleConnsPerHost: 32,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
	t.Cleanup(base.CloseIdleConnections)
	return base
}

// outcome counts the outcomes of many requests.
type outcome struct {
	ok, other, failed atomic.Int64
	errors            sync.Map // error texts
}

func (o *outcome) fail(err error) {
	o.failed.Add(1)
	o.errors.Store(err.Error(), true)
}

func (o *outcome) lost() int64 { return o.other.Load() + o.failed.Load() }

// callers is the number of concurrent callers.
const callers = 16

// hammer makes n requests from all callers, and continues as long as meanwhile
// runs.
func hammer(t *testing.T, rt http.RoundTripper, method, url string, n int, body func() io.Reader, meanwhile func()) *outcome {
	t.Helper()
	var o outcome
	var next atomic.Int64
	var ended atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		defer ended.Store(true)
		if meanwhile != nil {
			meanwhile()
		}
	})
	for range callers {
		wg.Go(func() {
			for next.Add(1) <= int64(n) || !ended.Load() {
				var content io.Reader
				if body != nil {
					content = body()
				}
				resp, err := rt.RoundTrip(play.Must(http.NewRequest(method, url, content)))
				if err != nil {
					o.fail(err)
					continue
				}
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				switch {
				case err != nil:
					o.fail(err)
				case resp.StatusCode == http.StatusOK:
					o.ok.Add(1)
				default:
					o.other.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return &o
}

// compare runs hammer over a bare base and over a wrapped one.
func compare(t *testing.T, p Proto, policy retrip.Policy, method, url string, n int, body func() io.Reader, meanwhile func()) (bare, wrapped *outcome) {
	t.Helper()
	bare = hammer(t, daemonBase(t, p), method, url, n, body, meanwhile)
	wrapped = hammer(t, &retrip.Transport{Base: daemonBase(t, p), Policy: policy}, method, url, n, body, meanwhile)
	t.Logf("%s over %s: bare %d ok, %d refused, %d failed; wrapped %d ok, %d refused, %d failed", method, p,
		bare.ok.Load(), bare.other.Load(), bare.failed.Load(), wrapped.ok.Load(), wrapped.other.Load(), wrapped.failed.Load())
	wrapped.errors.Range(func(text, _ any) bool {
		t.Logf("%s over %s, wrapped: %v", method, p, text)
		return true
	})
	return bare, wrapped
}

const nginxConfig = `
daemon off;
worker_processes 1;
pid $DIR/pid;
error_log $DIR/error.log crit;
events { worker_connections 512; }
http {
	access_log off;
	client_body_temp_path $DIR/a; proxy_temp_path $DIR/b; fastcgi_temp_path $DIR/c; uwsgi_temp_path $DIR/d; scgi_temp_path $DIR/e;
	limit_req_zone $binary_remote_addr zone=rl:1m rate=20r/s;
	limit_req_status 429;
	map $status $ra { default ""; 429 "1"; }
	server {
		listen $ADDR $OPTIONS;
		ssl_certificate $DIR/cert.pem;
		ssl_certificate_key $DIR/key.pem;
		add_header Retry-After $ra always;
		$LIMITS
		client_max_body_size 64k;
		location /limited { limit_req zone=rl burst=5 nodelay; proxy_pass http://$ADDR/; } # limits come after "return"
		location / { return 200 "ok"; }
	}
}
`

// startNginx starts nginx with listen options and further directives.
func startNginx(t *testing.T, options, limits string) (*daemon, string) {
	addr, err := FreeAddr()
	require.NoError(t, err)
	config := strings.NewReplacer("$ADDR", addr, "$OPTIONS", options, "$LIMITS", limits).Replace(nginxConfig)
	return startDaemon(t, "nginx", config, addr, "-c", "$DIR/config", "-p", "$DIR/"), addr
}

// nginx and HAProxy state in a 429 with Retry-After when to return. With the gate, all
// requests comply.
func TestServers_RateLimit(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (*daemon, string){
		"nginx":   func(t *testing.T) (*daemon, string) { return startNginx(t, "", "") },
		"HAProxy": func(t *testing.T) (*daemon, string) { return startHAProxy(t, "100", http.HandlerFunc(fine)) },
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := start(t)
			policy := retrip.Policy{MaxAttempts: 10, Gate: retrip.Gate{Enabled: retrip.On}, MaxWait: time.Minute, Backoff: retrip.Backoff{Base: 50 * time.Millisecond}}
			bare, wrapped := compare(t, HTTP1, policy, http.MethodGet, "http://"+addr+"/limited", 32, nil, nil)
			assert.NotZero(t, bare.lost(), "if no request exceeds the limit, the test proves nothing")
			assert.Zero(t, wrapped.lost())
		})
	}
}

// nginx closes a connection after a number of requests or milliseconds, just as
// the next request is sent. GOAWAY proves which requests were not processed, so
// a POST is repeated too.
func TestNginx_ConnectionsEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		p       Proto
		options string
	}{{HTTP1, ""}, {HTTP2, "ssl http2"}, {H2C, "http2"}} {
		t.Run(tt.p.String(), func(t *testing.T) {
			_, addr := startNginx(t, tt.options, "keepalive_requests 10; keepalive_timeout 50ms;")
			url := tt.p.Scheme() + "://" + addr + "/"
			policy := stubborn
			for _, method := range []string{http.MethodGet, http.MethodPut} {
				_, wrapped := compare(t, tt.p, policy, method, url, 200, func() io.Reader { return stream("body") }, nil)
				assert.Zero(t, wrapped.lost())
			}
			bare, wrapped := compare(t, tt.p, policy, http.MethodPost, url, 200, func() io.Reader { return stream("body") }, nil)
			if tt.p != HTTP1 { // HTTP/1 has no such proof
				// A connection that has been idle may also end without GOAWAY,
				// and then there is no proof either. Slow machines see this
				// more often.
				assert.NotZero(t, bare.lost())
				assert.LessOrEqual(t, 2*wrapped.lost(), bare.lost(), "an unprocessed POST is repeated")
			}
		})
	}
}

// nginx replaces its workers under load.
func TestNginx_Reload(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		p       Proto
		options string
	}{{HTTP1, ""}, {HTTP2, "ssl http2"}} {
		t.Run(tt.p.String(), func(t *testing.T) {
			d, addr := startNginx(t, tt.options, "")
			reload := func() {
				for range 5 {
					pause(t.Context(), 100*time.Millisecond)
					_ = d.cmd.Process.Signal(syscall.SIGHUP)
				}
				pause(t.Context(), 100*time.Millisecond)
			}
			url := tt.p.Scheme() + "://" + addr + "/"
			for _, method := range []string{http.MethodPut, http.MethodPost} {
				_, wrapped := compare(t, tt.p, stubborn, method, url, 200, func() io.Reader { return stream("body") }, reload)
				if method == http.MethodPut {
					assert.Zero(t, wrapped.lost())
				}
			}
		})
	}
}

// nginx answers 413 while the upload is still in progress. That is the final
// answer, on the first attempt.
//
//retrip:promise P8
func TestNginx_RefusedUpload(t *testing.T) {
	t.Parallel()
	_, addr := startNginx(t, "", "")
	attempts := 0
	transport := &retrip.Transport{Base: daemonBase(t, HTTP1), Policy: stubborn, Trace: &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }}}
	resp, _ := play.Do(t, transport, play.MustRequest(t, http.MethodPut, "http://"+addr+"/", strings.NewReader(strings.Repeat("x", 8<<20))))
	assert.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	assert.Equal(t, 1, attempts)
}

const haproxyConfig = `
global
	maxconn 200
	stats socket $DIR/admin mode 600 level admin
defaults
	mode http
	timeout connect 2s
	timeout client 10s
	timeout server 10s
	timeout queue 50ms
frontend web
	bind $ADDR
	stick-table type ip size 10k expire 10s store http_req_rate(1s)
	acl limited path /limited
	http-request track-sc0 src if limited
	http-request return status 429 content-type text/plain string slow hdr Retry-After 1 if limited { sc_http_req_rate(0) gt 20 }
	default_backend real
backend real
	server one $UPSTREAM maxconn $MAXCONN
`

func startHAProxy(t *testing.T, maxconn string, h http.Handler) (*daemon, string) {
	upstream := Serve(HTTP1, h)
	t.Cleanup(upstream.Close)
	addr, err := FreeAddr()
	require.NoError(t, err)
	config := strings.NewReplacer("$ADDR", addr, "$UPSTREAM", upstream.Listener.Addr().String(), "$MAXCONN", maxconn).Replace(haproxyConfig)
	return startDaemon(t, "haproxy", config, addr, "-db", "-f", "$DIR/config"), addr
}

func fine(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }

// Behind a connection limit, HAProxy queues requests and answers 503 when that
// takes too long. A wait longer than the queue's helps.
func TestHAProxy_ConnectionLimit(t *testing.T) {
	t.Parallel()
	_, addr := startHAProxy(t, "2", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pause(r.Context(), 20*time.Millisecond)
		fine(w, r)
	}))
	policy := stubborn
	policy.MaxAttempts = 60 // a busy machine takes seconds to start HAProxy
	bare, wrapped := compare(t, HTTP1, policy, http.MethodGet, "http://"+addr+"/", 100, nil, nil)
	assert.Greater(t, bare.lost(), int64(5))
	assert.Zero(t, wrapped.lost())
}

// While HAProxy restarts, nothing listens. A request that never had a
// connection is repeated whatever its method; a POST in progress is not.
//
//retrip:promise P6
func TestHAProxy_Restart(t *testing.T) {
	t.Parallel()
	var posts sync.Map
	var twice atomic.Int64
	d, addr := startHAProxy(t, "100", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			if _, seen := posts.LoadOrStore(string(body), true); seen {
				twice.Add(1)
			}
		}
		fine(w, r)
	}))
	policy := stubborn
	policy.MaxAttempts = 60 // a busy machine takes seconds to start HAProxy
	const restarts = 3
	restart := func() {
		for range restarts {
			pause(t.Context(), 150*time.Millisecond)
			_ = d.cmd.Process.Kill()
			_ = d.cmd.Wait()
			pause(t.Context(), 100*time.Millisecond)
			d.start(addr)
		}
		pause(t.Context(), 150*time.Millisecond)
	}
	bare, wrapped := compare(t, HTTP1, policy, http.MethodPut, "http://"+addr+"/", 100, func() io.Reader { return stream("body") }, restart)
	assert.NotZero(t, bare.lost())
	assert.Zero(t, wrapped.lost())
	var number atomic.Int64
	unique := func() io.Reader { return stream(strings.Repeat("x", int(number.Add(1)%100)) + time.Now().String()) }
	bare, wrapped = compare(t, HTTP1, policy, http.MethodPost, "http://"+addr+"/", 100, unique, restart)
	assert.Zero(t, twice.Load(), "POSTs that arrived twice")
	assert.Greater(t, bare.lost(), wrapped.lost())
	// Requests in progress at a restart may have been executed, and so may
	// those in the backlog of a closing listener: up to some per caller,
	// regardless of how many the bare base loses, and few in addition to what
	// it loses on a fast machine.
	assert.LessOrEqual(t, wrapped.lost(), max(2*callers*restarts, bare.lost()/10))
}
