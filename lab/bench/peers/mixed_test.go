// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// errNotInstalled means that a program is missing here.
var errNotInstalled = errors.New("not installed")

// fetchers download a URL to a file, and continue where a connection breaks.
var fetchers = map[string]func(ctx context.Context, url, file string) error{
	"retrip": func(ctx context.Context, url, file string) error {
		transport := &retrip.Transport{Policy: retrip.Policy{Resume: time.Minute, Backoff: retrip.Backoff{Base: time.Millisecond}}}
		defer transport.CloseIdleConnections()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "identity")
		resp, err := (&http.Client{Transport: transport}).Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return save(file, 0, resp.Body)
	},
	// The loops ask for the rest of what they have, up to five times.
	"loop with Range": func(ctx context.Context, url, file string) error {
		return loop(ctx, url, file, func(http.Header) string { return "" })
	},
	"loop with If-Range": func(ctx context.Context, url, file string) error {
		return loop(ctx, url, file, func(first http.Header) string {
			if etag := first.Get("ETag"); etag != "" {
				return etag
			}
			return first.Get("Last-Modified")
		})
	},
	"curl -C - in a loop": func(ctx context.Context, url, file string) (err error) {
		for range 5 {
			if err = program(ctx, "curl", "-sS", "-f", "-C", "-", "-o", file, url); err == nil || errors.Is(err, errNotInstalled) {
				return err
			}
		}
		return err
	},
	"wget": func(ctx context.Context, url, file string) error {
		return program(ctx, "wget", "-q", "--tries=5", "--waitretry=0", "-O", file, url)
	},
	"aria2": func(ctx context.Context, url, file string) error {
		return program(ctx, "aria2c", "-q", "--no-conf", "--max-tries=5", "--retry-wait=0", "--file-allocation=none", "-x1", "-d", filepath.Dir(file), "-o", filepath.Base(file), url)
	},
	"undici": func(ctx context.Context, url, file string) error {
		return program(ctx, "node", "-e", undici, url, file)
	},
}

// versions are the commands that print the version of a program.
var versions = map[string][]string{
	"curl -C - in a loop": {"curl", "--version"},
	"wget":                {"wget", "--version"},
	"aria2":               {"aria2c", "--version"},
	"undici":              {"node", "-p", "require('undici/package.json').version"},
}

// undici reads the body of a response in a plain loop. npm install undici where
// NODE_PATH says.
const undici = `
let u
try { u = require('undici') } catch { process.exit(99) }
const fs = require('fs'), [url, file] = process.argv.slice(1)
const agent = new u.RetryAgent(new u.Agent(), { minTimeout: 1, maxTimeout: 10 })
u.request(url, { dispatcher: agent }).then(async ({ body }) => {
	const out = fs.openSync(file, 'w')
	for await (const chunk of body) fs.writeSync(out, chunk)
}).then(() => process.exit(0), () => process.exit(1))
`

// program runs a program that downloads a file.
func program(ctx context.Context, name string, args ...string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return errNotInstalled
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "no_proxy=127.0.0.1")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 99 {
		return errNotInstalled
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

// save writes what it reads to the file, from the offset at on.
func save(file string, at int64, r io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(at); err != nil {
		return err
	}
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return err
	}
	_, err = io.Copy(f, r)
	return err
}

// loop downloads as hand-written code does. The condition for the rest is made
// from the header of the first response.
func loop(ctx context.Context, url, file string, condition func(http.Header) string) error {
	var first http.Header
	for range 5 {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept-Encoding", "identity")
		var at int64
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			at = info.Size()
			req.Header.Set("Range", fmt.Sprintf("bytes=%d-", at))
			if value := condition(first); value != "" {
				req.Header.Set("If-Range", value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			continue
		}
		switch resp.StatusCode {
		case http.StatusOK:
			at, first = 0, resp.Header
		case http.StatusPartialContent:
		default:
			resp.Body.Close()
			return errors.New(resp.Status)
		}
		err = save(file, at, resp.Body)
		resp.Body.Close()
		if err == nil {
			return nil
		}
	}
	return errors.New("it breaks again and again")
}

// change is how a file changes between the break of a download and the request
// for the rest.
type change struct {
	name         string
	length       int // how much longer it becomes
	dated, edges bool
}

var changes = []change{
	{name: "other bytes", dated: true},
	{name: "other bytes, date kept"},
	{name: "first and last byte only", dated: true, edges: true},
	{name: "first and last byte only, date kept", edges: true},
	{name: "longer", dated: true, length: 1000},
	{name: "longer, date kept", length: 1000},
}

// mixing is a server whose first response breaks. Then its file changes.
type mixing struct {
	versions  [2][]byte
	dates     [2]time.Time
	etags     bool // sends an ETag of the content
	deaf      bool // ignores If-Range
	requested atomic.Int32
}

func (s *mixing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := s.requested.Add(1)
	now := min(int(n), 2) - 1
	content := s.versions[now]
	if s.etags {
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(content)))
	}
	if s.deaf {
		r.Header.Del("If-Range")
	}
	if n == 1 {
		w = breaking{w, new(int)}
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", s.dates[now], struct{ io.ReadSeeker }{bytes.NewReader(content)})
}

// breaking breaks off in the middle of a file.
type breaking struct {
	http.ResponseWriter
	sent *int
}

func (w breaking) Write(p []byte) (int, error) {
	if *w.sent+len(p) > fileSize/2 {
		_, _ = w.ResponseWriter.Write(p[:fileSize/2-*w.sent])
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	n, err := w.ResponseWriter.Write(p)
	*w.sent += n
	return n, err
}

const fileSize = 256 << 10

// TestMixed breaks a download in the middle, changes the file, and looks at what
// the client says it has got: with ETags and with dates only, from a server that
// understands If-Range and from one that doesn't. The cells of the table in
// docs/downloads.md are the numbers of files that were mixed from two versions and
// reported as good. A client whose program is missing is left out, and one of
// another version than in the table isn't compared with it.
//
//retrip:promise P20
func TestMixed(t *testing.T) {
	page := read(t, "../../../docs/downloads.md")
	for name, fetch := range fetchers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.NewChaCha8([32]byte{1})
			var cells []string
			continued := 0
			for _, etags := range []bool{true, false} {
				for _, deaf := range []bool{false, true} {
					mixed := 0
					for _, c := range append([]change{{name: "none"}}, changes...) {
						s := &mixing{etags: etags, deaf: deaf}
						s.versions[0] = make([]byte, fileSize)
						_, _ = random.Read(s.versions[0])
						s.versions[1] = slices.Clone(s.versions[0])
						switch {
						case c.name == "none":
						case c.edges:
							s.versions[1][0]++
							s.versions[1][fileSize-1]++
						default:
							s.versions[1] = make([]byte, fileSize+c.length)
							_, _ = random.Read(s.versions[1])
						}
						s.dates[0] = time.Now().Add(-time.Hour)
						s.dates[1] = s.dates[0]
						if c.dated {
							s.dates[1] = time.Now()
						}
						server := httptest.NewUnstartedServer(s)
						server.Config.ErrorLog = log.New(io.Discard, "", 0)
						server.Start()
						file := filepath.Join(t.TempDir(), "file")
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						err := fetch(ctx, server.URL+"/file", file)
						cancel()
						server.Close()
						if errors.Is(err, errNotInstalled) {
							t.Skip("not installed")
						}
						got, _ := os.ReadFile(file)
						good := bytes.Equal(got, s.versions[0]) || bytes.Equal(got, s.versions[1])
						switch {
						case c.name == "none":
							if good && err == nil {
								continued++
							}
						case err == nil && !good:
							t.Logf("ETag=%t, If-Range ignored=%t, %s: mixed", etags, deaf, c.name)
							mixed++
						}
					}
					cells = append(cells, fmt.Sprint(mixed))
				}
			}
			assert.Equal(t, 4, continued, "files that stay arrive whole")
			t.Log(strings.Join(cells, " | "))
			row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(name) + ` ?([\d.]*)[^|]*\| (.*) \|$`).FindStringSubmatch(page)
			require.NotNil(t, row, "docs/downloads.md has no row")
			if command, ok := versions[name]; ok {
				out, err := exec.Command(command[0], command[1:]...).Output()
				require.NoError(t, err)
				if !strings.Contains(string(out), row[1]) {
					t.Skipf("not version %s", row[1])
				}
			}
			assert.Equal(t, strings.Join(cells, " | "), row[2])
		})
	}
}
