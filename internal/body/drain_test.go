// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body_test

import (
	"compress/gzip"
	"context"
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

func TestMain(m *testing.M) { testenv.RareGC(m) }

// Each of 60 requests gets one 503 with 64 KiB first. All of them share one connection.
//
//retrip:promise P12
func TestDrain_KeepsConnections(t *testing.T) {
	for _, chunked := range []bool{false, true} {
		for _, proto := range play.Protos {
			play.Bubble(t, fmt.Sprintf("%s/chunked %v", proto, chunked), func(t *testing.T) {
				var seen atomic.Int32
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if seen.Add(1)%2 == 0 {
						return
					}
					if !chunked {
						w.Header().Set("Content-Length", "65536")
					}
					w.WriteHeader(503)
					for range 64 {
						_, _ = w.Write(make([]byte, 1<<10))
					}
				}))
				tr := &retrip.Transport{Base: s.Transport()}
				for range 60 {
					resp, _ := play.Do(t, tr, play.MustRequest(t, "GET", s.URL, nil))
					require.Equal(t, 200, resp.StatusCode)
				}
				assert.EqualValues(t, 120, seen.Load())
				synctest.Wait()
				assert.Equal(t, []int{1, 1}, []int{s.Listener.Dials(), s.Listener.Open()})
			})
		}
	}
}

// A body that doesn't end costs less than 150 ms, and its connection. A caller that goes
// waits at most a millisecond for it.
//
//retrip:promise P10 P12
func TestDrain_GivesUp(t *testing.T) {
	announced := func(length int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(length))
			w.WriteHeader(503)
			play.Flush(w)
			<-r.Context().Done()
		}
	}
	const longer = "longer by its own word"
	for name, serve := range map[string]http.HandlerFunc{
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = io.Copy(w, play.Zeros{})
		},
		"stalled": announced(10),
		longer:    announced(256<<10 + 1),
		"dripping, compressed": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(503)
			for z := gzip.NewWriter(w); r.Context().Err() == nil; time.Sleep(50 * time.Millisecond) {
				_, _ = z.Write([]byte{'.'})
				_ = z.Flush()
				play.Flush(w)
			}
		},
	} {
		for _, proto := range play.Protos {
			for _, limit := range []time.Duration{0, time.Hour} { // without it, the first attempt is plain
				play.Bubble(t, fmt.Sprintf("%s/%s/AttemptTimeout %v", name, proto, limit), func(t *testing.T) {
					var seen atomic.Int32
					s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						if seen.Add(1)%2 == 1 {
							serve(w, r)
						}
					}))
					for _, base := range []time.Duration{retrip.Off, time.Millisecond, 40 * time.Millisecond, 100 * time.Millisecond, time.Second} {
						tr := &retrip.Transport{Base: s.Transport(), Policy: play.With(func(p *retrip.Policy) { p.Backoff.Base, p.AttemptTimeout = base, limit })}
						start := time.Now()
						testenv.Drop(t, tr, play.MustRequest(t, "GET", s.URL, nil))
						took := time.Since(start)
						assert.Less(t, took-max(0, base), 150*time.Millisecond)
						if base >= 100*time.Millisecond || name == longer {
							assert.Equal(t, max(0, base), took, "the wait is not lengthened")
						}

						seen.Store(0)
						ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
						start = time.Now()
						if testenv.Try(tr, play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx)) != nil {
							assert.Equal(t, 20*time.Millisecond, time.Since(start))
						}
						cancel()
						seen.Store(0)
						tr.CloseIdleConnections()
					}
				})
			}
		}
	}
}

// The exact bounds.
//
//retrip:promise P12
func TestDrain_Bounds(t *testing.T) {
	for _, tt := range []struct {
		name   string
		size   int64
		length int64 // declared length
		ended  bool
	}{
		{"nothing", 0, 0, true},
		{"256 KiB, declared", 256 << 10, 256 << 10, true},
		{"256 KiB, not declared", 256 << 10, -1, true},
		{"more, declared", 256<<10 + 1, 256<<10 + 1, false},
		{"much more, not declared", 1 << 20, -1, false},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			base := play.Base(func(*http.Request) (*http.Response, error) {
				body := play.NewReply(io.LimitReader(play.Zeros{}, tt.size))
				return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: tt.length, Body: body}, nil
			}, play.Reply(200))
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "GET", nil))
			assert.Equal(t, tt.ended, base.Bodies[0].Ended.Load())
			assert.Positive(t, base.Bodies[0].Closed.Load())
			assert.Equal(t, time.Second, base.At[1])
		})
	}
}

// A discarded response may have a nil body or no body.
//
//retrip:promise P12
func TestDrain_NoBody(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		base := play.Base(func(*http.Request) (*http.Response, error) { return &http.Response{StatusCode: 503, Body: body}, nil })
		tr := &retrip.Transport{Base: base, Policy: play.AtOnce}
		tr.Policy.AttemptTimeout = time.Minute
		resp, err := tr.RoundTrip(play.Request(t, "HEAD", nil))
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, 4, base.Attempts())
	}
}

// ownBody is a body of a type that retrip doesn't know. It records how it was
// closed.
type ownBody struct {
	play.SendBody
	hangs   <-chan struct{} // Close waits for its end; nil if it doesn't wait
	reading atomic.Int32
	amid    atomic.Bool // closed during a Read
}

func (b *ownBody) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	return b.Reader.Read(p)
}

func (b *ownBody) Close() error {
	b.amid.Store(b.reading.Load() > 0)
	err := b.SendBody.Close()
	if b.hangs != nil {
		<-b.hangs
	}
	return err
}

// No discarded body can hold up RoundTrip. Each is closed once, and during a
// Read only if its time is up.
//
//retrip:promise P12
func TestDrain_HostileBodies(t *testing.T) {
	type read = func(p []byte, end <-chan struct{}) (int, error)
	after := func(d time.Duration, n int, err error) read {
		return func([]byte, <-chan struct{}) (int, error) { time.Sleep(d); return n, err }
	}
	atEnd := func(_ []byte, end <-chan struct{}) (int, error) { <-end; return 0, io.EOF }
	for _, tt := range []struct {
		name  string
		read  read
		hangs bool          // Close doesn't return
		amid  bool          // it must be closed during a Read
		took  time.Duration // maximum duration for two such bodies, with waits of 0
	}{
		{"Close doesn't end Read", atEnd, false, true, 100 * time.Millisecond},
		{"nothing for ever", after(0, 0, nil), false, false, 0},
		{"nothing, slowly, for ever", after(30*time.Millisecond, 0, nil), false, true, 100 * time.Millisecond},
		{"less than nothing", after(0, -1, nil), false, false, 0},
		{"in time", after(49*time.Millisecond, 0, io.EOF), false, false, 98 * time.Millisecond},
		{"too late", after(51*time.Millisecond, 0, io.EOF), false, true, 100 * time.Millisecond},
		{"Close doesn't return", after(0, 0, io.EOF), true, false, 200 * time.Millisecond},
		{"neither returns", atEnd, true, true, 200 * time.Millisecond},
		{"panics when nobody listens any more", func(_ []byte, end <-chan struct{}) (int, error) { <-end; panic("too late") }, false, true, 100 * time.Millisecond},
		{"longer than is drained", func(p []byte, _ <-chan struct{}) (int, error) { return len(p), nil }, false, false, 0},
	} {
		// answer returns a step that answers 503 with such bodies, and adds them to all.
		answer := func(length int64, end <-chan struct{}, all *[]*ownBody, lines ...string) play.Step {
			return func(r *http.Request) (*http.Response, error) {
				b := &ownBody{SendBody: play.SendBody{Reader: testenv.Reader(func(p []byte) (int, error) { return tt.read(p, end) })}}
				if tt.hangs {
					b.hangs = end
				}
				*all = append(*all, b)
				resp, err := play.Reply(503, lines...)(r)
				resp.Body, resp.ContentLength = b, length
				return resp, err
			}
		}
		for _, length := range []int64{-1, 10, 1 << 40} {
			play.Bubble(t, fmt.Sprintf("%s/length %d", tt.name, length), func(t *testing.T) {
				end := make(chan struct{})
				var all []*ownBody
				hostile := answer(length, end, &all)
				tr := &retrip.Transport{Base: play.Base(hostile, hostile, play.Reply(200)), Policy: play.AtOnce}
				start := time.Now()
				play.Do(t, tr, play.Request(t, "GET", nil))
				assert.LessOrEqual(t, time.Since(start), tt.took)
				synctest.Wait()
				close(end)
				synctest.Wait()
				time.Sleep(time.Second)
				require.Len(t, all, 2)
				for _, b := range all {
					assert.EqualValues(t, 1, b.Closed.Load())
					assert.Equal(t, tt.amid && length != 1<<40, b.amid.Load())
				}
			})
		}
		play.Bubble(t, tt.name+"/caller gone", func(t *testing.T) {
			end := make(chan struct{})
			var all []*ownBody
			base := play.Base(answer(-1, end, &all, "Retry-After: 1"))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			start := time.Now()
			_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, 10*time.Millisecond, time.Since(start))
			close(end)
			time.Sleep(time.Second)
			require.Len(t, all, 1)
			assert.EqualValues(t, 1, all[0].Closed.Load())
		})
	}
}

// A response that comes with an error, or too late, is closed and can't hold up
// RoundTrip either.
//
//retrip:promise P12
func TestDrain_DismissedBodies(t *testing.T) {
	for name, end := range map[string]func(*http.Request) error{
		"with an error": func(*http.Request) error { return io.ErrUnexpectedEOF },
		"too late": func(r *http.Request) error {
			<-r.Context().Done()
			return nil
		},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			hangs := make(chan struct{})
			body := &ownBody{hangs: hangs}
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: 200, Body: body}, end(r)
			}, play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.Backoff.Base = time.Second, retrip.Off })}
			start := time.Now()
			play.Do(t, tr, play.Request(t, "GET", nil))
			assert.LessOrEqual(t, time.Since(start), 1050*time.Millisecond)
			close(hangs)
			synctest.Wait()
			assert.EqualValues(t, 1, body.Closed.Load())
		})
	}
}
