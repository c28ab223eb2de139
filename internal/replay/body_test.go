// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

var (
	dialError  = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	resetError = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
)

// faultyBodies are requests whose own body is at fault.
var faultyBodies = map[string]func(t testing.TB, req *http.Request){
	"stream fails":              func(_ testing.TB, r *http.Request) { r.Body = io.NopCloser(play.BrokenAt("payload", 3)) },
	"stream fails at once":      func(_ testing.TB, r *http.Request) { r.Body = io.NopCloser(play.BrokenAt("payload", 0)) },
	"stream fails like a dial":  func(_ testing.TB, r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(dialError)) },
	"stream fails like a reset": func(_ testing.TB, r *http.Request) { r.Body = io.NopCloser(iotest.ErrReader(resetError)) },
	"stream, shorter": func(_ testing.TB, r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(play.Stream([]byte("payload"))), 8
	},
	"stream, longer": func(_ testing.TB, r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(play.Stream([]byte("payload"))), 6
	},
	"section fails": func(_ testing.TB, r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.NewSectionReader(play.Unreadable{N: 3}, 0, 7)), 7
	},
	"section, shorter": func(_ testing.TB, r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.NewSectionReader(strings.NewReader("payload"), 0, 7)), 8
	},
	"section, longer": func(_ testing.TB, r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.NewSectionReader(strings.NewReader("payload"), 0, 7)), 6
	},
	"file that isn't one to read": func(t testing.TB, r *http.Request) {
		f, err := os.OpenFile(filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString("payload")
		require.NoError(t, err)
		_, err = f.Seek(0, io.SeekStart)
		require.NoError(t, err)
		r.Body, r.ContentLength = f, 7
	},
	"file, shorter": func(t testing.TB, r *http.Request) {
		name := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(name, []byte("payload"), 0o600))
		f, err := os.Open(name)
		require.NoError(t, err)
		r.Body, r.ContentLength = f, 8
	},
	"GetBody whose bodies fail": func(_ testing.TB, r *http.Request) {
		get := func() (io.ReadCloser, error) { return io.NopCloser(play.BrokenAt("payload", 3)), nil }
		r.Body, _ = get()
		r.GetBody, r.ContentLength = get, 7
	},
	"GetBody whose bodies are shorter": func(_ testing.TB, r *http.Request) {
		get := func() (io.ReadCloser, error) { return io.NopCloser(play.Stream([]byte("payload"))), nil }
		r.Body, _ = get()
		r.GetBody, r.ContentLength = get, 8
	},
	"buffer, shorter": func(_ testing.TB, r *http.Request) { setBytes(r, "payload"); r.ContentLength = 8 },
	"buffer, longer":  func(_ testing.TB, r *http.Request) { setBytes(r, "payload"); r.ContentLength = 6 },
}

func setBytes(r *http.Request, s string) {
	get := func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
	r.Body, _ = get()
	r.GetBody, r.ContentLength = get, int64(len(s))
}

// A failure of the caller's own body is the caller's: retrip doesn't retry it,
// takes no token, and holds nothing against the host, whatever the kind of
// body.
//
//retrip:promise P7
func TestBody_AtFault(t *testing.T) {
	for name, fault := range faultyBodies {
		for _, proto := range play.Protos {
			for _, timeout := range []time.Duration{0, time.Hour} {
				for _, attempts := range []int{1, 4} {
					t.Run(fmt.Sprintf("%s/%s/timeout %v/attempts %d", name, proto, timeout, attempts), func(t *testing.T) {
						// Files must be created outside the bubble.
						req, err := http.NewRequest("PUT", "http://example.com/", nil)
						require.NoError(t, err)
						fault(t, req)
						synctest.Test(t, func(t *testing.T) { bodyAtFault(t, req, proto, timeout, attempts) })
					})
				}
			}
		}
	}
}

func bodyAtFault(t *testing.T, req *http.Request, proto memhttp.Proto, timeout time.Duration, attempts int) {
	var seen atomic.Int32
	s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			seen.Add(1)
		}
		panic(http.ErrAbortHandler)
	}))
	used := 0
	inner := s.Transport()
	tr := &retrip.Transport{
		Policy: retrip.Policy{AttemptTimeout: timeout, MaxAttempts: attempts, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1}},
		Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			used++
			return inner.RoundTrip(r)
		}),
	}
	defer inner.CloseIdleConnections()
	req.URL = play.MustRequest(t, "GET", s.URL, nil).URL
	start := time.Now()
	_, err := tr.RoundTrip(req.WithContext(t.Context()))
	require.Error(t, err)
	assert.NotErrorAs(t, err, new(*retrip.Error), "the base's own error")
	assert.Equal(t, 1, used)
	assert.LessOrEqual(t, seen.Load(), int32(1), "a longer body arrives up to its declared length")
	assert.Zero(t, time.Since(start))
	assert.Empty(t, play.Held(tr), "there is no failure of the host")
	synctest.Wait()
}

// A body that fails after its Close is not at fault, because the Close ends its
// reading.
//
//retrip:promise P7
func TestBody_FailsOnceClosed(t *testing.T) {
	play.Bubble(t, "pipe", func(t *testing.T) {
		pipe, _ := io.Pipe()
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			read := make(chan error)
			go func() {
				_, err := r.Body.Read(make([]byte, 1))
				read <- err
			}()
			synctest.Wait()
			_ = r.Body.Close()
			assert.Error(t, <-read)
			return nil, io.ErrUnexpectedEOF
		}, play.Reply(200))
		base.Keep = true
		req := play.Request(t, "PUT", pipe)
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("again")), nil }
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
		assert.Equal(t, 2, base.Attempts())
	})
}

// If the body is at fault but there is a response, retrip sends nothing again
// and returns the response.
//
//retrip:promise P7
func TestBody_AtFaultWithAResponse(t *testing.T) {
	for name, fault := range faultyBodies {
		t.Run(name, func(t *testing.T) {
			req, err := http.NewRequest("PUT", "http://example.com/", nil)
			require.NoError(t, err)
			fault(t, req)
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				_, _ = io.Copy(io.Discard, r.Body)
				_ = r.Body.Close()
				return play.Reply(503)(r)
			})
			base.Keep = true
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
			assert.Equal(t, 1, base.Attempts())
		})
	}
}

// The error of GetBody is the last one, so it comes first in the text. It
// doesn't hide the error that made the retry necessary.
//
//retrip:promise P7 P17
func TestBody_GetBodyFails(t *testing.T) {
	lost := errors.New("the connection was lost")
	base := play.Base(play.Err(lost))
	req := play.Request(t, "PUT", bytes.NewReader([]byte("payload")))
	req.GetBody = func() (io.ReadCloser, error) { return nil, play.ErrDisk }
	tr := &retrip.Transport{Base: base, Policy: play.Steady}
	_, err := tr.RoundTrip(req)
	e := play.AsError(t, err)
	assert.Equal(t, retrip.ReasonBodyNotReplayable, e.Reason)
	assert.ErrorIs(t, err, lost)
	assert.ErrorIs(t, err, play.ErrDisk)
	assert.EqualError(t, err, "retrip: gave up after 1 attempt (body_not_replayable): the disk is gone; before that: the connection was lost")
}

// If GetBody returns no body, the retry must not continue to read the body that
// the first attempt has used up.
//
//retrip:promise P7
func TestTransport_GetBodyYieldsNothing(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		base := play.Base(play.Reply(503), play.Reply(200))
		req := play.Request(t, http.MethodPut, strings.NewReader("text"))
		req.GetBody = func() (io.ReadCloser, error) { return nil, nil }
		resp, err := (&retrip.Transport{Base: base}).RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, 1, base.Attempts())
		play.Finish(t, resp)
	})
}

// A body that fails is the caller's failure and no give-up, with and without
// retries, hooks and bounds.
func TestBody_FailsWithOneAttempt(t *testing.T) {
	for name, set := range map[string]func(*retrip.Transport){
		"alone":        func(*retrip.Transport) {},
		"a Trace":      func(tr *retrip.Transport) { tr.Trace = &retrip.Trace{} },
		"a breaker":    func(tr *retrip.Transport) { tr.Policy.Breaker.Ratio = 0.5 },
		"a timeout":    func(tr *retrip.Transport) { tr.Policy.AttemptTimeout = time.Hour },
		"two attempts": func(tr *retrip.Transport) { tr.Policy.MaxAttempts = 2 },
	} {
		play.Bubble(t, name, func(t *testing.T) {
			m := retrip.NewMetrics()
			tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Metrics: m, Policy: retrip.Policy{MaxAttempts: 1}}
			set(tr)
			_, err := tr.RoundTrip(play.Request(t, http.MethodPut, iotest.ErrReader(errors.New("the file is gone"))))
			assert.ErrorContains(t, err, "the file is gone")
			s := play.Gather(t, m)["default"]
			assert.EqualValues(t, 1, s["requests_total failed"], "%v", s)
			assert.Zero(t, s["give_ups_total max_attempts"])
		})
	}
}
