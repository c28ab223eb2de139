// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

const refusedStream = 7

// uploaded is what an upload contains.
var uploaded = string(content[:6000])

// newUpload returns a PUT to url, and its body.
func newUpload(t *testing.T, url string) (*http.Request, *play.SendBody) {
	body := play.NewSend(uploaded)
	req := play.MustRequest(t, "PUT", url, body)
	req.ContentLength = 6000
	return req, body
}

// isClosed fails t unless the body has been closed once.
func isClosed(t *testing.T, body *play.SendBody) {
	t.Helper()
	synctest.Wait()
	assert.EqualValues(t, 1, body.Closed.Load())
}

// net/http's HTTP/2 takes a copy of the body from GetBody before it waits for
// another send, and drops that copy if the wait ends with the context, or if
// there is no connection.
//
//retrip:promise P2
func TestReplay_CopyIsDropped(t *testing.T) {
	for name, answer := range map[string]func(w *play.H2Writer, conn int, stream uint32){
		"refused": func(w *play.H2Writer, _ int, stream uint32) { w.Reset(stream, refusedStream) },
		"GOAWAY":  func(w *play.H2Writer, _ int, _ uint32) { w.GoAway(0, 0) },
		"GOAWAY and close": func(w *play.H2Writer, _ int, _ uint32) {
			w.GoAway(0, 0)
			w.Close()
		},
		"closed": func(w *play.H2Writer, _ int, _ uint32) { w.Close() },
		"refused once": func(w *play.H2Writer, _ int, stream uint32) {
			if stream == 1 {
				w.Reset(stream, refusedStream)
				return
			}
			w.OK(stream)
		},
		"GOAWAY once": func(w *play.H2Writer, conn int, stream uint32) {
			if conn == 1 {
				w.GoAway(0, 0)
				return
			}
			w.OK(stream)
		},
	} {
		for _, timeout := range []time.Duration{300 * time.Millisecond, 8 * time.Second} {
			for _, wholeBody := range []int64{0, 1000} {
				play.Bubble(t, fmt.Sprint(name, " ", timeout, wholeBody), func(t *testing.T) {
					base, _ := play.H2Server(t, answer)
					req, body := newUpload(t, "http://example.com/")
					tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.WholeBody = timeout, wholeBody })}
					if resp, err := tr.RoundTrip(req); err == nil {
						play.Finish(t, resp)
					}
					isClosed(t, body)
				})
			}
		}
	}
}

// A copy that net/http has dropped doesn't look like a body that is still being
// sent, and so WholeBody reads the response.
//
//retrip:promise P20
func TestReplay_WholeBodyAfterADroppedCopy(t *testing.T) {
	for _, getBody := range []bool{false, true} {
		play.Bubble(t, fmt.Sprint("GetBody ", getBody), func(t *testing.T) {
			base, _ := play.H2Server(t, func(w *play.H2Writer, conn int, stream uint32) {
				switch {
				case conn == 1:
					w.GoAway(0, 0)
				case conn == 2 && stream == 1:
					w.Part(stream, "half")
					w.Reset(stream, 2)
				default:
					w.OK(stream)
				}
			})
			req, _ := newUpload(t, "http://example.com/")
			if getBody {
				req.GetBody = again(uploaded)
			}
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.WholeBody = 1000 })}
			_, text := play.Do(t, tr, req)
			assert.Empty(t, text)
		})
	}
}

// blocked is a body whose Close doesn't return before the end of its test.
type blocked struct {
	*play.SendBody
	end <-chan struct{}
}

func (b blocked) Close() error {
	err := b.SendBody.Close()
	<-b.end
	return err
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

// An answer neither waits for the Close of a body nor keeps one open that it has refused.
//
//retrip:promise P2 P5
func TestReplay_ClosedAsByNetHTTP(t *testing.T) {
	for name, tt := range map[string]struct {
		expect string
		status int
		reads  bool
		protos []memhttp.Proto
	}{
		"read": {"", 200, true, play.Protos}, "read, and failed": {"", 503, true, play.Protos}, "unread": {"", 413, false, play.Protos},
		"Expect, refused":    {"100-continue", 417, false, play.Protos},
		"Expect, not needed": {"100-continue", 200, false, []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS}}, // HTTP/2 still sends the body
	} {
		for _, proto := range tt.protos {
			for _, blocks := range []bool{true, false} {
				play.Bubble(t, fmt.Sprintf("%s/%s/blocks %v", name, proto, blocks), func(t *testing.T) {
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if tt.reads {
							_ = play.ReadAll(t, r.Body)
						}
						w.Header().Set("Connection", "close")
						w.WriteHeader(tt.status)
					}))
					base := s.Transport()
					base.ExpectContinueTimeout = time.Minute
					req, body := newUpload(t, s.URL)
					if blocks {
						req.Body = blocked{body, t.Context().Done()}
					}
					if tt.expect != "" {
						req.Header.Set("Expect", tt.expect)
					}
					began := time.Now()
					resp := testenv.Do(t, &retrip.Transport{Base: base, Policy: play.AtOnce}, req)
					assert.Equal(t, tt.status, resp.StatusCode)
					assert.Less(t, time.Since(began), 100*time.Millisecond)
					isClosed(t, body)
					require.NoError(t, resp.Body.Close())
				})
			}
		}
	}
}
