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
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// patient are the fetchers with the settings that their manuals name for a server
// that goes away for a while. The loops stay as they are.
var patient = map[string]func(ctx context.Context, url, file string) error{
	"curl --retry 5": func(ctx context.Context, url, file string) error {
		return program(ctx, "curl", "-sS", "-f", "-C", "-", "--retry", "5", "--retry-all-errors", "-o", file, url)
	},
	"wget": func(ctx context.Context, url, file string) error {
		return program(ctx, "wget", "-q", "--retry-connrefused", "-O", file, url)
	},
	"aria2": func(ctx context.Context, url, file string) error {
		return program(ctx, "aria2c", "-q", "--no-conf", "--retry-wait=1", "--file-allocation=none", "-x1", "-d", filepath.Dir(file), "-o", filepath.Base(file), url)
	},
	"undici": func(ctx context.Context, url, file string) error {
		return program(ctx, "node", "-e", strings.Replace(undici, "{ minTimeout: 1, maxTimeout: 10 }", "{}", 1), url, file)
	},
}

// leaving is a server that breaks off its first response, refuses connections for
// a while, and comes back at the same address.
type leaving struct {
	content []byte
	away    time.Duration
	address string

	mu   sync.Mutex
	left bool
	up   *http.Server
	done bool
}

// listen begins to serve. It panics where its port has been taken meanwhile.
func (s *leaving) listen() {
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		panic(err)
	}
	s.address = listener.Addr().String()
	s.up = &http.Server{Handler: s, ErrorLog: log.New(io.Discard, "", 0)}
	go s.up.Serve(listener)
}

func (s *leaving) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.up.Close()
	time.AfterFunc(s.away, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.done {
			s.listen()
		}
	})
}

func (s *leaving) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	_ = s.up.Close()
}

func (s *leaving) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(s.content)))
	w.Header().Set("Content-Type", "application/octet-stream")
	s.mu.Lock()
	first := !s.left
	s.left = true
	s.mu.Unlock()
	if first {
		w = breaking{w, new(int)}
		defer s.leave()
	}
	http.ServeContent(w, r, "", time.Now().Add(-time.Hour), bytes.NewReader(s.content))
}

// outcomes are the results of TestAway, and the versions of the programs.
var outcomes = map[string]struct{ version, want string }{
	ours:                 {"", "whole"},
	"curl --retry 5":     {"7.88.1", "whole"},
	"wget":               {"1.21.3", "whole"},
	"undici":             {"7.30.2", "whole"},
	"aria2":              {"1.36.0", "fails"},
	"loop with Range":    {"", "fails"},
	"loop with If-Range": {"", "fails"},
}

// TestAway breaks a download in the middle and lets its server refuse connections
// for one and for ten seconds. A client whose program is missing is left out, and
// one of another version than in outcomes may end differently.
//
//retrip:promise P20
func TestAway(t *testing.T) {
	clients := maps.Clone(fetchers)
	delete(clients, "curl -C - in a loop")
	maps.Copy(clients, patient)
	for name, fetch := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var cells [2]string
			var all sync.WaitGroup
			for i, away := range []time.Duration{time.Second, 10 * time.Second} {
				all.Go(func() {
					s := &leaving{content: make([]byte, fileSize), away: away, address: "127.0.0.1:0"}
					_, _ = rand.NewChaCha8([32]byte{1}).Read(s.content)
					s.listen()
					defer s.close()
					file := filepath.Join(t.TempDir(), "file")
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					began := time.Now()
					err := fetch(ctx, "http://"+s.address+"/file", file)
					took := time.Since(began)
					got, _ := os.ReadFile(file)
					switch {
					case errors.Is(err, errNotInstalled):
						cells[i] = errNotInstalled.Error()
					case err != nil:
						cells[i] = "fails"
					case bytes.Equal(got, s.content):
						cells[i] = "whole"
					default:
						cells[i] = "**wrong**"
					}
					t.Logf("%v away: %s after %v: %v", away, cells[i], took.Round(10*time.Millisecond), err)
				})
			}
			all.Wait()
			if cells[0] == errNotInstalled.Error() {
				t.Skip("not installed")
			}
			outcome, ok := outcomes[name]
			require.True(t, ok)
			if command, ok := versions[name]; ok {
				out, err := exec.Command(command[0], command[1:]...).Output()
				require.NoError(t, err)
				if !bytes.Contains(out, []byte(outcome.version)) {
					t.Skipf("not version %s", outcome.version)
				}
			}
			assert.Equal(t, [2]string{outcome.want, outcome.want}, cells)
		})
	}
}
