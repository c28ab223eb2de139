// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

const lighttpdConfig = `
server.document-root = "$DIR/www"
server.bind = "127.0.0.1"
server.port = $PORT
server.stat-cache-engine = "disable"
mimetype.assign = ( ".tar" => "application/x-tar" )
`

// dateServers are file servers of which some send Last-Modified and no ETag.
// Each returns its address and its directory.
var dateServers = map[string]struct {
	start  func(t *testing.T) (addr, dir string)
	proto  Proto
	etag   bool
	ranges bool
}{
	"http.FileServer":         {start: func(t *testing.T) (string, string) { return fileServer(t, HTTP1) }, proto: HTTP1, ranges: true},
	"http.FileServer, HTTP/2": {start: func(t *testing.T) (string, string) { return fileServer(t, H2C) }, proto: H2C, ranges: true},
	"lighttpd":                {start: func(t *testing.T) (string, string) { return lighttpd(t, "") }, proto: HTTP1, etag: true, ranges: true},
	"lighttpd without ETags":  {start: func(t *testing.T) (string, string) { return lighttpd(t, `static-file.etags = "disable"`) }, proto: HTTP1, ranges: true},
	"python's http.server": {proto: HTTP1, start: func(t *testing.T) (string, string) {
		addr, err := FreeAddr()
		require.NoError(t, err)
		d := startDaemon(t, "python3", "", addr, "-m", "http.server", "--bind", "127.0.0.1", "--directory", "$DIR", strings.TrimPrefix(addr, "127.0.0.1:"))
		return addr, d.dir
	}},
}

func fileServer(t *testing.T, p Proto) (addr, dir string) {
	dir = t.TempDir()
	s := Serve(p, http.FileServer(http.Dir(dir)))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), dir
}

func lighttpd(t *testing.T, more string) (addr, dir string) {
	addr, err := FreeAddr()
	require.NoError(t, err)
	config := strings.ReplaceAll(lighttpdConfig, "$PORT", strings.TrimPrefix(addr, "127.0.0.1:")) + more + "\n"
	d := startDaemon(t, "lighttpd", config, addr, "-D", "-f", "$DIR/config")
	dir = filepath.Join(d.dir, "www")
	require.NoError(t, os.Mkdir(dir, 0o755))
	return addr, dir
}

// put puts a file of the given content and date in the place of name, as
// rsync -t does.
func put(t *testing.T, name string, content []byte, date time.Time) {
	require.NoError(t, os.WriteFile(name+"~", content, 0o644))
	require.NoError(t, os.Chtimes(name+"~", date, date))
	require.NoError(t, os.Rename(name+"~", name))
}

// TestResume_Dates reads files through a proxy that cuts, from servers that send
// only dates. A file that stays arrives whole if the server has ranges. If
// another file of the same length takes its place meanwhile, nothing is mixed,
// even if it has the same date.
//
//retrip:promise P20
func TestResume_Dates(t *testing.T) {
	const size, every = 12 << 20, 3 << 20
	old, new := make([]byte, size), make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(old)
	_, _ = random.Read(new)
	date := time.Now().Add(-time.Hour).Truncate(time.Second)
	for name, server := range dateServers {
		for _, c := range []struct {
			change string
			date   time.Time
		}{{"nothing", time.Time{}}, {"now", time.Now()}, {"an older file", date.Add(-time.Hour)}, {"the date kept", date}} {
			t.Run(name+", "+c.change, func(t *testing.T) {
				addr, dir := server.start(t)
				file := filepath.Join(dir, "image.tar")
				put(t, file, old, date)
				proxy, err := NewCuts(addr, every, server.proto, CutFIN, CutRST)
				require.NoError(t, err)
				defer proxy.Close()
				base := &http.Transport{Protocols: server.proto.Protocols()}
				defer base.CloseIdleConnections()
				continued, why := 0, ""
				tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Backoff: retrip.Backoff{Base: time.Millisecond}}, Trace: &retrip.Trace{Resume: func(e retrip.Event) {
					if why = string(e.Reason); why == "continued" {
						continued++
					}
				}}}
				req := play.MustRequest(t, http.MethodGet, "http://"+proxy.Addr()+"/image.tar", nil)
				req.Header.Set("Accept-Encoding", "identity")
				resp := testenv.Do(t, tr, req)
				defer resp.Body.Close()
				assert.Equal(t, server.etag, resp.Header.Get("ETag") != "")
				assert.NotEmpty(t, resp.Header.Get("Last-Modified"))
				got := make([]byte, 1<<20)
				_, err = io.ReadFull(resp.Body, got)
				require.NoError(t, err)
				if c.change != "nothing" {
					put(t, file, new, c.date)
				}
				rest, err := io.ReadAll(resp.Body)
				got = append(got, rest...)
				require.True(t, bytes.HasPrefix(old, got), "two files are mixed")
				switch {
				case !server.ranges && (c.change == "nothing" || c.change == "the date kept"):
					require.ErrorContains(t, err, "no_ranges, in a response with status 200")
				case c.change == "nothing":
					require.NoError(t, err)
					assert.Len(t, got, size)
					assert.GreaterOrEqual(t, continued, 3)
					assert.LessOrEqual(t, proxy.Sent(), int64(size+64<<10))
				default:
					require.ErrorContains(t, err, "changed, in a response with status 20")
				}
			})
		}
	}
}
