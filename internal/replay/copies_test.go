// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// lone is a reader that two must not use at once.
type lone struct {
	io.ReadSeeker
	t    testing.TB
	busy atomic.Bool
}

func (l *lone) alone() func() {
	if !l.busy.CompareAndSwap(false, true) {
		l.t.Error("two use the caller's reader at once")
	}
	return func() { l.busy.Store(false) }
}

func (l *lone) Read(p []byte) (int, error) {
	defer l.alone()()
	return l.ReadSeeker.Read(p)
}

func (l *lone) Seek(offset int64, whence int) (int64, error) {
	defer l.alone()()
	return l.ReadSeeker.Seek(offset, whence)
}

func (l *lone) Close() error { return nil }

// wrapper is a body around another, of which each GetBody makes a new one.
type wrapper struct{ io.ReadCloser }

// getter returns the first body of a request, and its GetBody.
type getter = func(t testing.TB, payload []byte) (io.ReadCloser, func() (io.ReadCloser, error))

// oneReader returns a getter of bodies around one reader: the first one, and those of
// GetBody, which may rewind it.
func oneReader(open func(t testing.TB, payload []byte) io.ReadSeeker, first, next func(io.ReadSeeker) io.ReadCloser, rewinds bool) getter {
	return func(t testing.TB, payload []byte) (io.ReadCloser, func() (io.ReadCloser, error)) {
		one := open(t, payload)
		return first(one), func() (_ io.ReadCloser, err error) {
			if rewinds {
				_, err = one.Seek(0, io.SeekStart)
			}
			return next(one), err
		}
	}
}

func openLone(t testing.TB, payload []byte) io.ReadSeeker {
	return &lone{ReadSeeker: bytes.NewReader(payload), t: t}
}

func openMemory(_ testing.TB, payload []byte) io.ReadSeeker { return bytes.NewReader(payload) }

func openFile(t testing.TB, payload []byte) io.ReadSeeker {
	name := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(name, payload, 0o600))
	f := play.Must(os.Open(name))
	t.Cleanup(func() { f.Close() })
	return f
}

func bare(one io.ReadSeeker) io.ReadCloser       { return one.(io.ReadCloser) }
func inNew(one io.ReadSeeker) io.ReadCloser      { return &wrapper{one.(io.ReadCloser)} }
func unseekable(one io.ReadSeeker) io.ReadCloser { return wrapper{one.(io.ReadCloser)} }
func unclosed(one io.ReadSeeker) io.ReadCloser   { return io.NopCloser(one) }

// gets are those of well-known clients.
var gets = map[string]getter{
	"copies": func(t testing.TB, payload []byte) (io.ReadCloser, func() (io.ReadCloser, error)) {
		get := func() (io.ReadCloser, error) { return bare(openLone(t, payload)), nil }
		return play.Must(get()), get
	},
	"one reader, rewound":                        oneReader(openLone, bare, bare, true),
	"one reader, rewound, in a new wrapper":      oneReader(openLone, inNew, inNew, true),
	"one reader, rewound, in a wrapper at first": oneReader(openLone, inNew, bare, true),
	"one file, rewound":                          oneReader(openFile, unclosed, unclosed, true),
	"one reader in memory, rewound":              oneReader(openMemory, unclosed, unclosed, true),
	"one reader, not rewound":                    oneReader(openLone, bare, bare, false),
	"one reader that can't seek, not rewound":    oneReader(openLone, unseekable, unseekable, false),
	"one reader in memory, not rewound":          oneReader(openMemory, unclosed, unclosed, false),
}

// Whatever GetBody returns, and however an attempt ends, a server that is content has got
// each byte, once, and nobody reads for an attempt that is over. If GetBody rewinds, the
// retry succeeds. Run this test with the race detector.
//
//retrip:promise P7
func TestCopies_OfOneReader(t *testing.T) {
	ways := map[string]func(http.ResponseWriter, *http.Request){
		"at once": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(503) },
		"at once, and closes": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			w.WriteHeader(503)
		},
		"halfway": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.ReadFull(r.Body, make([]byte, r.ContentLength/2+500))
			w.WriteHeader(503)
		},
		"at the end": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(503)
		},
		"too late": func(http.ResponseWriter, *http.Request) { time.Sleep(5 * time.Second) },
		"never":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for kind, open := range gets {
		for way, answer := range ways {
			for _, size := range []int{1 << 10, 200_000} {
				for _, known := range []bool{true, false} {
					for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2} {
						play.Bubble(t, fmt.Sprint(kind, "/", way, "/", size, "/", known, "/", proto), func(t *testing.T) {
							payload := play.Pattern(size)
							var seen atomic.Int32
							s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
								if seen.Add(1) < 3 {
									answer(w, r)
									return
								}
								if got, err := io.ReadAll(r.Body); err != nil {
									panic(http.ErrAbortHandler)
								} else if !assert.True(t, bytes.Equal(payload, got), "got %d bytes", len(got)) {
									w.WriteHeader(400)
								}
							}))
							req := play.MustRequest(t, "PUT", s.URL, nil)
							if req.Body, req.GetBody = open(t, payload); known {
								req.ContentLength = int64(size)
							}
							p := play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })
							resp, err := (&retrip.Transport{Base: s.Transport(), Policy: p}).RoundTrip(req)
							if err == nil {
								play.Finish(t, resp)
							}
							if !strings.Contains(kind, "not rewound") {
								require.NoError(t, err)
								assert.Equal(t, 200, resp.StatusCode)
							}
							play.LetPass(time.Minute)
						})
					}
				}
			}
		}
	}
}

// Each attempt has trailers of its own: those that the caller's body has set by its end.
// Run this test with the race detector.
//
//retrip:promise P2 P4
func TestCopies_Trailers(t *testing.T) {
	for _, kind := range []string{"stream", "GetBody"} {
		for _, early := range []bool{true, false} {
			play.EachProto(t, func(t *testing.T, proto memhttp.Proto) {
				var seen atomic.Int32
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					n := seen.Add(1)
					if n == 1 && early {
						w.WriteHeader(503)
						return
					}
					got := play.ReadAll(t, r.Body)
					if len(got) != 50_000 || r.Trailer.Get("Sum") != "50000" {
						t.Errorf("attempt %d: %d bytes, trailers %v", n, len(got), r.Trailer)
					}
					if n == 1 {
						w.WriteHeader(503)
					}
				}))
				req := play.MustRequest(t, "PUT", s.URL, nil)
				req.Trailer = http.Header{"Sum": nil}
				var made atomic.Int32
				get := func() (io.ReadCloser, error) {
					payload, first := play.Pattern(50_000), made.Add(1) == 1
					return io.NopCloser(io.MultiReader(bytes.NewReader(payload), atEnd(func() {
						if first {
							time.Sleep(30 * time.Millisecond) // the retry doesn't wait that long
						}
						req.Trailer.Set("Sum", strconv.Itoa(len(payload)))
					}))), nil
				}
				if req.Body, _ = get(); kind == "GetBody" {
					req.GetBody = get
				}
				resp, _ := play.Do(t, &retrip.Transport{Base: s.Transport(), Policy: play.AtOnce}, req)
				assert.Equal(t, 200, resp.StatusCode)
				assert.EqualValues(t, 2, seen.Load())
				play.LetPass(time.Minute)
			})
		}
	}
}

// atEnd is an empty reader that calls the function at its end.
type atEnd func()

func (f atEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// Nothing of a body in memory was sent: it is where it was, whatever its GetBody returns.
// After that, it is at its end.
//
//retrip:promise P7
func TestCopies_UnsentMemory(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		one := bytes.NewBufferString("payload")
		base := play.Keep(func(r *http.Request) (*http.Response, error) {
			assert.Equal(t, 7, one.Len())
			return nil, dialError
		}, func(r *http.Request) (*http.Response, error) {
			assert.Equal(t, "payload", play.ReadAll(t, r.Body))
			return play.Reply(200)(r)
		})
		req := play.Request(t, "POST", nil)
		req.Body, req.ContentLength = io.NopCloser(one), 7
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(one), nil }
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
		assert.Zero(t, one.Len())
	})
}

// net/http sends nothing of a small body in memory that isn't as long as announced, and the
// header of each other together with it. So it must know such a body.
//
//retrip:promise P4 P7
func TestCopies_InMemory(t *testing.T) {
	for _, attempts := range []int{1, 4} {
		for _, length := range []int64{3, 7, 9} {
			for _, getBody := range []bool{true, false} {
				play.Bubble(t, fmt.Sprint(attempts, " attempts, of ", length, " ", getBody), func(t *testing.T) {
					var seen atomic.Int32
					s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						seen.Add(1)
						_, _ = io.Copy(io.Discard, r.Body)
					}))
					req := play.MustRequest(t, "PUT", s.URL, nil)
					req.Body, req.ContentLength = io.NopCloser(strings.NewReader("payload")), length
					if getBody {
						req.GetBody = again("payload")
					}
					p := play.With(func(p *retrip.Policy) { p.MaxAttempts = attempts })
					_, err := (&retrip.Transport{Base: s.Transport(), Policy: p}).RoundTrip(req)
					if length == 7 {
						require.NoError(t, err)
						assert.EqualValues(t, 1, seen.Load())
						return
					}
					assert.ErrorContains(t, err, "ContentLength")
					var own *retrip.Error
					assert.False(t, errors.As(err, &own))
					synctest.Wait()
					assert.Zero(t, seen.Load())
				})
			}
		}
	}
}
