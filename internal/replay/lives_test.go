// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// dice are random numbers for several goroutines.
type dice struct {
	mu     sync.Mutex
	random *rand.Rand
}

func roll(seed, stream uint64) *dice { return &dice{random: rand.New(rand.NewPCG(seed, stream))} }

func (d *dice) IntN(n int) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.random.IntN(n)
}

// living is a caller's request body. It takes its time.
type living struct {
	r      io.Reader
	random *dice
	closed atomic.Int32
}

func (b *living) Read(p []byte) (int, error) {
	if b.random.IntN(3) == 0 {
		play.LetPass(time.Duration(b.random.IntN(200)) * time.Millisecond)
	}
	return b.r.Read(p[:min(len(p), 1+b.random.IntN(3000))])
}

func (b *living) Close() error { b.closed.Add(1); return nil }

// frames answers the streams of a server that refuses, goes away, resets,
// answers early, answers late or never answers.
func frames(random *dice) func(w *play.H2Writer, conn int, stream uint32, sent int) {
	kind := random.IntN(8) // mostly does the same
	return func(w *play.H2Writer, _ int, stream uint32, sent int) {
		act := kind
		if random.IntN(3) == 0 {
			act = random.IntN(10)
		}
		if early := random.IntN(2) == 0; early != (sent < 0) {
			return // this may be the only call for the stream, which then hangs
		}
		switch act {
		case 0, 1:
			w.Reset(stream, refusedStream)
		case 2:
			w.GoAway(uint32(random.IntN(int(stream)+1)), 0)
		case 3:
			w.GoAway(uint32(random.IntN(int(stream)+1)), uint32(random.IntN(3)))
			w.Close()
		case 4:
			w.Close()
		case 5:
			w.Reset(stream, uint32(random.IntN(12)))
		case 6:
			w.Part(stream, "some")
			w.Reset(stream, uint32(random.IntN(3)))
		case 7:
			w.Part(stream, "some")
			w.End(stream)
			w.Reset(stream, 0)
		default:
			w.OK(stream)
		}
	}
}

// handler is a server's handler with moods of the same kind.
func handler(random *dice) http.HandlerFunc {
	kind := random.IntN(6)
	return func(w http.ResponseWriter, r *http.Request) {
		act := kind
		if random.IntN(3) == 0 {
			act = random.IntN(8)
		}
		if random.IntN(2) == 0 {
			_, _ = io.CopyN(io.Discard, r.Body, int64(random.IntN(8000)))
		}
		switch act {
		case 0:
			panic(http.ErrAbortHandler)
		case 1:
			memhttp.RequestConn(r).Reset()
			panic(http.ErrAbortHandler)
		case 2:
			http.Error(w, "later", http.StatusServiceUnavailable)
		case 3:
			select {
			case <-r.Context().Done():
			case <-time.After(45 * time.Second):
			}
		case 4:
			w.Header().Set("Content-Length", "9")
			_, _ = w.Write([]byte("some"))
			play.Flush(w)
			panic(http.ErrAbortHandler)
		case 5:
			w.Header().Set("Connection", "close") // GOAWAY over HTTP/2
		}
	}
}

// TestReplay_Lives lets servers of all kinds treat uploads badly. Whatever they
// do, the caller's body is closed, a stream once, and nothing is left running.
//
//retrip:promise P2
func TestReplay_Lives(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(testenv.Size(400, 20_000)) {
		random := roll(seed, 26)
		draw := func(n int) bool { return random.IntN(n) == 0 }
		size := []int{0, 1, 6000, 30_000}[random.IntN(4)]
		stream := &living{r: strings.NewReader(strings.Repeat("x", size)), random: roll(seed, 27)}
		var file *os.File
		if draw(3) {
			name := filepath.Join(dir, "upload")
			require.NoError(t, os.WriteFile(name, make([]byte, size), 0o600))
			file = play.Must(os.Open(name))
		}
		req := play.MustRequest(t, []string{"PUT", "PUT", "POST"}[random.IntN(3)], "http://example.com/", stream)
		if file != nil {
			req.Body = file
		}
		if req.ContentLength = int64(size); draw(4) {
			req.ContentLength = -1
		}
		if draw(4) {
			req.ContentLength += int64(random.IntN(3) - 1)
		}
		if draw(4) {
			req.Header.Set("Idempotency-Key", "k")
		}
		if draw(5) {
			req.Header.Set("Expect", "100-continue")
		}
		if draw(8) {
			req.GetBody = again(strings.Repeat("x", size))
		}
		synctest.Test(t, func(t *testing.T) {
			var base *http.Transport
			if draw(2) {
				base, _ = play.H2EarlyServer(t, frames(random))
			} else {
				proto := play.Protos[random.IntN(4)]
				s := memhttp.NewServer(t, proto, handler(random))
				base = s.Transport()
				req.URL = play.MustRequest(t, "GET", s.URL, nil).URL
				defer base.CloseIdleConnections()
			}
			base.ExpectContinueTimeout = time.Duration(random.IntN(2)) * time.Second
			p := play.With(func(p *retrip.Policy) {
				if draw(2) {
					p.AttemptTimeout = []time.Duration{300 * time.Millisecond, 8 * time.Second}[random.IntN(2)]
				}
				if draw(4) {
					p.Deadline = time.Duration(random.IntN(20)) * time.Second
				}
				p.MaxAttempts = 1 + random.IntN(3)
				if draw(3) {
					p.WholeBody = 100
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(40))*time.Second)
			defer cancel()
			resp, err := (&retrip.Transport{Base: base, Policy: p}).RoundTrip(req.WithContext(ctx))
			if err == nil {
				if draw(2) {
					_, _ = io.Copy(io.Discard, resp.Body)
				}
				resp.Body.Close()
			}
			// What the base still sends ends by itself, or with the connection.
			time.Sleep(time.Minute)
			synctest.Wait()
			if file != nil {
				_, err := file.Stat()
				require.ErrorIs(t, err, os.ErrClosed, "seed %d", seed)
				return
			}
			require.EqualValues(t, 1, stream.closed.Load(), "seed %d: %v", seed, err)
		})
	}
}
