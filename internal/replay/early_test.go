// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// The server responds while the upload is still in progress. It reads all of
// the third attempt. Run this test with the race detector.
//
//retrip:promise P7
func TestReplay_EarlyAnswer(t *testing.T) {
	payload := play.Pattern(4 << 20)
	want := signature(string(payload))
	bodies := kinds(t, payload)
	for _, kind := range []string{"GetBody", "file", "stream"} {
		for _, proto := range play.Protos {
			play.Bubble(t, kind+"/"+proto.String(), func(t *testing.T) {
				var seen atomic.Int32
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					assert.EqualValues(t, len(payload), r.ContentLength)
					if seen.Add(1) < 3 {
						_, _ = io.ReadFull(r.Body, make([]byte, 100_000))
						http.Error(w, "busy", http.StatusServiceUnavailable)
						return
					}
					h := sha256.New()
					n, err := io.Copy(h, r.Body)
					assert.NoError(t, err)
					assert.EqualValues(t, len(payload), n)
					fmt.Fprintf(w, "%x", h.Sum(nil))
				}))
				tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = 8 << 20 })}
				req := play.MustRequest(t, "PUT", s.URL, bodies[kind]())
				req.ContentLength = int64(len(payload))
				_, got := play.Do(t, tr, req)
				assert.Equal(t, want, got)
				assert.EqualValues(t, 3, seen.Load())
			})
		}
	}
}

// The connection of an upload is lost. net/http's HTTP/2 closes the body, and waits for the end
// of a Read of it.
//
//retrip:promise P7 P13
func TestReplay_BaseAwaitsARead(t *testing.T) {
	for writes, attempts := range map[time.Duration]int{50 * time.Millisecond: 2, time.Hour: 1} {
		play.Bubble(t, fmt.Sprint("the caller writes after ", writes), func(t *testing.T) {
			var seen atomic.Int32
			s := memhttp.NewServer(t, memhttp.HTTP2, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if seen.Add(1) == 1 {
					_, _ = io.ReadFull(r.Body, make([]byte, 3))
					memhttp.RequestConn(r).Reset()
				} else {
					assert.Equal(t, "onetwo", play.ReadAll(t, r.Body))
				}
			}))
			pr, pw := io.Pipe()
			wrote := make(chan error, 1)
			go func() {
				_, _ = io.WriteString(pw, "one")
				time.Sleep(writes)
				_, err := io.WriteString(pw, "two")
				_ = pw.Close()
				wrote <- err
			}()
			start := time.Now()
			var done retrip.Event
			tr := &retrip.Transport{Base: s.Transport(), Policy: play.AtOnce, Trace: &retrip.Trace{Done: func(e retrip.Event) { done = e }}}
			resp, err := tr.RoundTrip(play.MustRequest(t, "PUT", s.URL, pr))
			if took := time.Since(start); attempts == 1 {
				assert.Error(t, err)
				assert.Equal(t, 100*time.Millisecond, took)
				assert.Equal(t, io.ErrClosedPipe, <-wrote)
				assert.Equal(t, retrip.ReasonBodyNotReplayable, done.Reason, "the host has failed, not the body")
			} else if assert.NoError(t, err) {
				resp.Body.Close()
				assert.NoError(t, <-wrote)
			}
			assert.EqualValues(t, attempts, seen.Load())
		})
	}
}
