// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// If root runs the test, no other user can read its directory.
const filesConfig = `
user root root;
daemon off;
worker_processes 1;
pid $DIR/pid;
error_log $DIR/error.log crit;
events { worker_connections 64; }
http {
	access_log off;
	client_body_temp_path $DIR/a; proxy_temp_path $DIR/b; fastcgi_temp_path $DIR/c; uwsgi_temp_path $DIR/d; scgi_temp_path $DIR/e;
	server { listen $ADDR; root $DIR; }
	server { listen $HTTP2 http2; root $DIR; }
}
`

const relayConfig = `
defaults
	mode http
	timeout connect 2s
	timeout client 10s
	timeout server 10s
frontend web
	bind $ADDR
	default_backend files
backend files
	server one $UPSTREAM
`

// fileNginx starts an nginx that serves a file of the given size over HTTP/1.1 and
// over HTTP/2.
func fileNginx(t *testing.T, config string, size int64) (nginx *daemon, addr, addr2 string, content []byte) {
	t.Helper()
	addr, err := FreeAddr()
	require.NoError(t, err)
	addr2, err = FreeAddr()
	require.NoError(t, err)
	nginx = startDaemon(t, "nginx", strings.NewReplacer("$ADDR", addr, "$HTTP2", addr2).Replace(config), addr, "-c", "$DIR/config", "-p", "$DIR/")
	content = play.Pattern(int(size))
	require.NoError(t, os.WriteFile(filepath.Join(nginx.dir, "image.tar"), content, 0o644))
	return nginx, addr, addr2, content
}

// Files served by nginx arrive whole although the connection is cut: directly,
// over HTTP/2, and behind HAProxy, which passes on the cuts in its own way.
//
//retrip:promise P20
func TestResume_RealServers(t *testing.T) {
	const size, every = 24 << 20, 3 << 20
	_, addr, addr2, content := fileNginx(t, filesConfig, size)
	for _, c := range []struct {
		name    string
		proto   Proto
		haproxy bool
		ways    []Cut
	}{
		{"nginx", HTTP1, false, []Cut{CutFIN, CutRST}},
		{"nginx, HTTP/2", H2C, false, []Cut{CutFIN, CutRST, CutRSTStream, CutGOAWAY}},
		{"HAProxy before nginx", HTTP1, true, []Cut{CutFIN, CutRST}},
	} {
		t.Run(c.name, func(t *testing.T) {
			upstream := addr
			if c.proto == H2C {
				upstream = addr2
			}
			cuts, err := NewCuts(upstream, every, c.proto, c.ways...)
			require.NoError(t, err)
			defer cuts.Close()
			server := cuts.Addr()
			if c.haproxy {
				relay, err := FreeAddr()
				require.NoError(t, err)
				startDaemon(t, "haproxy", strings.NewReplacer("$ADDR", relay, "$UPSTREAM", server).Replace(relayConfig), relay, "-db", "-f", "$DIR/config")
				server = relay
			}
			base := &http.Transport{Protocols: c.proto.Protocols()}
			defer base.CloseIdleConnections()
			metrics := &retrip.Metrics{}
			client := &http.Client{Transport: &retrip.Transport{Base: base, Metrics: metrics, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: 5 * time.Second, Backoff: retrip.Backoff{Base: 10 * time.Millisecond}}}}
			resp, err := client.Get("http://" + server + "/image.tar")
			require.NoError(t, err)
			defer resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode)
			got, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))
			assert.GreaterOrEqual(t, cuts.Made(), int64(size/every-1))
			assert.GreaterOrEqual(t, play.Gather(t, metrics)["default"]["body_resumes_total continued"], float64(size/every-1))
		})
	}
}

// Downloads from nginx arrive whole although nginx is stopped below them and away for a
// second, and so do those through a proxy that resets them. The budget alone would
// let ten continue.
//
//retrip:promise P20
func TestResume_RestartedServer(t *testing.T) {
	const size, downloads = 4 << 20, 20
	// The rate keeps the downloads going until nginx is stopped.
	config := strings.Replace(filesConfig, "root $DIR; }", "root $DIR; limit_rate 4m; }", 1)
	nginx, addr, _, content := fileNginx(t, config, size)
	cuts, err := NewCuts(addr, 1<<20, HTTP1, CutRST)
	require.NoError(t, err)
	defer cuts.Close()

	metrics := &retrip.Metrics{}
	transport := &retrip.Transport{Metrics: metrics, Policy: retrip.Policy{Resume: time.Minute, BodyIdleTimeout: 5 * time.Second}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var group sync.WaitGroup
	for i := range downloads {
		server := addr
		if i%4 == 0 {
			server = cuts.Addr()
		}
		resp, err := client.Get("http://" + server + "/image.tar")
		require.NoError(t, err)
		group.Go(func() {
			defer resp.Body.Close()
			got, err := io.ReadAll(resp.Body)
			assert.NoError(t, err)
			assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))
		})
	}
	<-time.After(200 * time.Millisecond)
	nginx.stop()
	<-time.After(time.Second)
	nginx.start(addr)
	group.Wait()
	assert.GreaterOrEqual(t, play.Gather(t, metrics)["default"]["body_resumes_total continued"], float64(downloads))
}
