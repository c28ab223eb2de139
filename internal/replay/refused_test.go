// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"fmt"
	"io"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

const refusedStream = 7

// closes is a request body that counts its Closes. It is a stream, or a section
// if section is set.
type closes struct {
	io.Reader
	closed atomic.Int32
}

func (b *closes) Close() error { b.closed.Add(1); return nil }

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
					payload := strings.Repeat("x", 6000)
					req := play.MustRequest(t, "PUT", "http://example.com/", nil)
					body := &closes{Reader: play.Stream([]byte(payload))}
					req.Body, req.ContentLength = body, 6000
					tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.WholeBody = timeout, wholeBody })}
					resp, err := tr.RoundTrip(req)
					if err == nil {
						play.Finish(t, resp)
					}
					synctest.Wait()
					assert.EqualValues(t, 1, body.closed.Load(), "%v", err)
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
	for name, getBody := range map[string]bool{"stream": false, "GetBody": true} {
		play.Bubble(t, name, func(t *testing.T) {
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
			req := play.MustRequest(t, "PUT", "http://example.com/", play.Stream(make([]byte, 6000)))
			req.ContentLength = 6000
			if getBody {
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(play.Stream(make([]byte, 6000))), nil }
			}
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.WholeBody = 1000 })}
			resp, err := tr.RoundTrip(req)
			require.NoError(t, err)
			assert.Empty(t, play.Finish(t, resp))
		})
	}
}

// After a response, net/http may still send its latest copy.
//
//retrip:promise P2
func TestReplay_LatestCopyIsStillSent(t *testing.T) {
	for _, section := range []bool{false, true} {
		play.Bubble(t, fmt.Sprint("section ", section), func(t *testing.T) {
			var got atomic.Int64
			base, _ := play.H2EarlyServer(t, func(w *play.H2Writer, conn int, stream uint32, sent int) {
				switch {
				case conn == 1:
					w.GoAway(0, 0)
				case sent < 0:
					w.Part(stream, "early")
				default:
					got.Store(int64(sent))
					w.End(stream)
				}
			})
			base.ExpectContinueTimeout = time.Second
			body := &closes{Reader: play.Stream(make([]byte, 6000))}
			req := play.MustRequest(t, "PUT", "http://example.com/", body)
			if section {
				req.Body = io.NopCloser(io.NewSectionReader(strings.NewReader(strings.Repeat("x", 6000)), 0, 6000))
			}
			req.ContentLength = 6000
			req.Header.Set("Expect", "100-continue")
			resp, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(req)
			require.NoError(t, err)
			assert.Zero(t, got.Load())
			assert.Equal(t, "early", play.Finish(t, resp))
			assert.EqualValues(t, 6000, got.Load())
			synctest.Wait()
			assert.True(t, section || body.closed.Load() == 1)
		})
	}
}

// net/http passes a body that it has closed with one connection to another. The
// response may come before that has read it.
//
//retrip:promise P2 P7
func TestReplay_MovedBodyIsStillSent(t *testing.T) {
	for _, section := range []bool{false, true} {
		for _, wholly := range []bool{false, true} {
			play.Bubble(t, fmt.Sprintf("section %v/wholly %v", section, wholly), func(t *testing.T) {
				var got, requests atomic.Int64
				var first atomic.Pointer[play.H2Writer]
				base, _ := play.H2EarlyServer(t, func(w *play.H2Writer, conn int, stream uint32, sent int) {
					switch {
					case stream == 1:
						// The next request needs a connection of its own, and
						// the one after that finds both.
						first.CompareAndSwap(nil, w)
						w.MaxStreams(1)
						time.AfterFunc(time.Second, func() { w.MaxStreams(100) })
						time.AfterFunc(time.Minute, func() { w.OK(stream) })
					case sent < 0:
						requests.Add(1)
						w.Part(stream, "early")
					default:
						got.Store(int64(sent))
						w.End(stream)
					}
				})
				base.ExpectContinueTimeout = time.Second
				tr := &retrip.Transport{Base: base, Policy: play.Steady}
				var others sync.WaitGroup
				for range 2 {
					others.Go(func() {
						resp, err := tr.RoundTrip(play.MustRequest(t, "GET", "http://example.com/", nil))
						if assert.NoError(t, err) {
							play.Finish(t, resp)
						}
					})
					time.Sleep(100 * time.Millisecond)
				}
				time.Sleep(2 * time.Second)
				body := &closes{Reader: play.Stream(make([]byte, 6000))}
				req := play.MustRequest(t, "POST", "http://example.com/", body)
				if section {
					req.Body = io.NopCloser(io.NewSectionReader(strings.NewReader(strings.Repeat("x", 6000)), 0, 6000))
				}
				req.ContentLength = -1
				req.Header.Set("Expect", "100-continue")
				conns := 0
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
					if conns++; conns == 1 {
						first.Load().GoAway(1, 0)
						time.Sleep(time.Millisecond)
					}
				}})
				resp, err := tr.RoundTrip(req.WithContext(ctx))
				require.NoError(t, err)
				assert.Zero(t, got.Load())
				assert.Zero(t, body.closed.Load())
				if wholly {
					assert.Equal(t, "early", play.Finish(t, resp))
					assert.EqualValues(t, 6000, got.Load())
				}
				assert.NoError(t, resp.Body.Close())
				assert.EqualValues(t, 1, requests.Load())
				assert.Equal(t, 2, conns)
				others.Wait()
				synctest.Wait()
				assert.True(t, section || body.closed.Load() == 1)
			})
		}
	}
}
