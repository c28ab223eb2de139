// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
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

// A server reads a whole request and resets its stream, with every error code.
// A request that isn't idempotent reaches the server as often as without
// retrip, unless the code says that it was not processed.
//
//retrip:promise P6
func TestProof_HTTP2CodesAfterAFullRead(t *testing.T) {
	const most = 50 // number of sends that the server resets
	bodies := map[string]func() io.Reader{
		"none":    func() io.Reader { return nil },
		"GetBody": func() io.Reader { return strings.NewReader("payload") },
		"stream":  func() io.Reader { return play.Stream([]byte("payload")) },
		"section": func() io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) },
	}
	const refusedStream = 7
	for code := range uint32(0xe) {
		for kind, body := range bodies {
			for _, timeout := range []time.Duration{0, 24 * time.Hour} {
				play.Bubble(t, fmt.Sprintf("code %#x/body %s/timeout %v", code, kind, timeout), func(t *testing.T) {
					arrivals := func(wrap func(http.RoundTripper) http.RoundTripper) int32 {
						var seen atomic.Int32
						base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
							if seen.Add(1) > most {
								w.OK(stream)
								return
							}
							w.Reset(stream, code)
						})
						req := play.MustRequest(t, "POST", "http://example.com/", body())
						if body() != nil {
							req.ContentLength = 7
						}
						resp, err := wrap(base).RoundTrip(req)
						if err == nil {
							play.Finish(t, resp)
						}
						return seen.Load()
					}
					bare := arrivals(func(base http.RoundTripper) http.RoundTripper { return base })
					ours := arrivals(func(base http.RoundTripper) http.RoundTripper {
						return &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
					})
					switch {
					case kind == "stream" || kind == "section":
						require.EqualValues(t, 1, bare, "net/http can't send it again")
						if code == refusedStream {
							assert.EqualValues(t, 4, ours)
						} else {
							assert.EqualValues(t, 1, ours)
						}
					case timeout > 0:
						assert.LessOrEqual(t, ours, min(bare, 10), "bounded by the attempt")
					case code == refusedStream:
						assert.LessOrEqual(t, ours, 4*bare)
					default:
						assert.Equal(t, bare, ours)
					}
				})
			}
		}
	}
}

// An error that joins others proves only what each of them proves, whatever
// their order and depth.
//
//retrip:promise P6
func TestProof_EveryBranch(t *testing.T) {
	proofs := []error{
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED},
		&net.OpError{Op: "proxyconnect", Err: io.EOF},
		&net.OpError{Op: "socks connect", Err: io.EOF},
		&net.DNSError{Err: "server misbehaving", IsTemporary: true},
		play.StreamError{StreamID: 1, Code: 7},
		&retrip.Error{Reason: retrip.ReasonBreakerOpen},
		&retrip.Error{Attempts: 2, Reason: retrip.ReasonMaxAttempts, Err: errors.Join(&net.OpError{Op: "dial"}, &net.OpError{Op: "dial"})},
	}
	others := []error{
		io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, context.DeadlineExceeded,
		&net.OpError{Op: "read", Err: syscall.ECONNRESET},
		&net.OpError{Op: "read", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}},
		play.StreamError{StreamID: 1, Code: 1},
		errors.New("http2: Transport: cannot retry err [stream error: stream ID 5; REFUSED_STREAM; received from peer] after Request.Body was written; define Request.GetBody to avoid this error"),
		errors.New("http2: Transport received Server's graceful shutdown GOAWAY"),
		&retrip.Error{Attempts: 2, Reason: retrip.ReasonMaxAttempts, Err: errors.Join(&net.OpError{Op: "dial"}, io.EOF)},
		&retrip.Error{Attempts: 2, Reason: retrip.ReasonMaxAttempts, StatusCode: 503, Err: errors.Join(&net.OpError{Op: "dial"})},
		errors.Join(), // nil
	}
	random := rand.New(rand.NewPCG(1, 2))
	// build returns a random error, and whether all of its leaves are proof.
	var build func(depth int) (error, bool)
	build = func(depth int) (error, bool) {
		switch kind := random.IntN(6); {
		case depth == 0 || kind < 3:
			if random.IntN(2) == 0 {
				return proofs[random.IntN(len(proofs))], true
			}
			return others[random.IntN(len(others)-1)], false
		case kind == 3:
			err, ok := build(depth - 1)
			return fmt.Errorf("wrapped: %w", err), ok
		default:
			a, okA := build(depth - 1)
			b, okB := build(depth - 1)
			if kind == 4 {
				return errors.Join(a, b), okA && okB
			}
			return fmt.Errorf("%w and %w", a, b), okA && okB
		}
	}
	repeats := 0
	for range 5000 {
		err, proof := build(3)
		base := play.Base(play.Err(err), play.Reply(200))
		base.Keep = true
		tr := &retrip.Transport{Base: base, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off}}
		resp, got := tr.RoundTrip(play.Request(t, "POST", nil))
		if !proof {
			require.Equal(t, 1, base.Attempts(), "%v", err)
			require.Equal(t, err, got)
			continue
		}
		repeats++
		require.NoError(t, got, "%v", err)
		require.Equal(t, 2, base.Attempts())
		play.Finish(t, resp)
	}
	assert.Greater(t, repeats, 500)
}

// The texts with which net/http says that it would have resent a stream are
// proof only verbatim, and only for a request that had a connection.
//
//retrip:promise P6
func TestProof_Texts(t *testing.T) {
	const begin, end = "http2: Transport: cannot retry err [", "] after Request.Body was written; define Request.GetBody to avoid this error"
	const refused, goAway = "stream error: stream ID 5; REFUSED_STREAM; received from peer", "http2: Transport received Server's graceful shutdown GOAWAY"
	for _, tt := range []struct {
		text string
		want int
	}{
		{begin + refused + end, 2},
		{begin + goAway + end, 2},
		{"net/http: cannot rewind body after connection loss", 2},
		{"net/http: cannot rewind body after connection loss.", 1},
		{begin + "stream error: stream ID 5; PROTOCOL_ERROR; received from peer" + end, 1},
		{begin + "stream error: stream ID 5; REFUSED_STREAM" + end, 1},
		{begin + "stream error: stream ID x; REFUSED_STREAM; received from peer" + end, 1},
		{begin + "stream error: stream ID ; REFUSED_STREAM; received from peer" + end, 1},
		{begin + refused + end + ".", 1},
		{" " + begin + goAway + end, 1},
		{begin + goAway, 1},
		{goAway, 1},
		{refused, 1},
	} {
		for name, connected := range map[string]bool{"sent": true, "not sent": false} {
			for kind, err := range map[string]error{"plain": errors.New(tt.text), "wrapped": fmt.Errorf("wrapped: %w", errors.New(tt.text)), "of another type": textError(tt.text)} {
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", tt.text, name, kind), func(t *testing.T) {
					used := 0
					base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						used++
						_, _ = io.Copy(io.Discard, r.Body)
						_ = r.Body.Close()
						if connected {
							httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
						}
						if used > 1 {
							return play.Reply(200)(r)
						}
						return nil, err
					})
					resp, _ := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "POST", play.Stream([]byte("payload"))))
					if resp != nil {
						play.Finish(t, resp)
					}
					if !connected || kind == "of another type" {
						assert.Equal(t, 1, used)
					} else {
						assert.Equal(t, tt.want, used)
					}
				})
			}
		}
	}
}

type textError string

func (e textError) Error() string { return string(e) }

// The history of an inner Transport proves something to the outer one only if
// all of it is proof.
//
//retrip:promise P6
func TestProof_TransportInsideATransport(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		name  string
		steps []play.Step
		want  int // attempts of the inner Transport, of 3 each
	}{
		{"never sent", []play.Step{play.Err(dial)}, 12},
		{"sent, then not", []play.Step{play.Err(io.EOF), play.Err(dial)}, 3},
		{"not sent, then sent", []play.Step{play.Err(dial), play.Err(io.EOF), play.Err(dial)}, 3},
		{"answered, then not sent", []play.Step{play.Reply(503), play.Err(dial)}, 3},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprint(tt.name, " timeout ", timeout), func(t *testing.T) {
				base := play.Base(tt.steps...)
				inner := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) {
					p.MaxAttempts, p.IdempotentMethods, p.AttemptTimeout = 3, []string{"POST"}, timeout
				})}
				outer := &retrip.Transport{Base: inner, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout })}
				_, err := outer.RoundTrip(play.Request(t, "POST", strings.NewReader("once")))
				assert.Error(t, err)
				assert.Equal(t, tt.want, base.Attempts())
			})
		}
	}
}

// A base may wrap the error of retrip's own timeout.
//
//retrip:promise P6
func TestProof_WrappedTimeout(t *testing.T) {
	for name, wrap := range map[string]func(error) error{
		"as it is": func(err error) error { return err },
		"wrapped":  func(err error) error { return fmt.Errorf("calling: %w", err) },
	} {
		play.Bubble(t, name, func(t *testing.T) {
			s := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(play.Echo))
			base := s.Transport()
			var dials atomic.Int32
			dial := base.DialContext
			base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
				if dials.Add(1) == 1 {
					time.Sleep(time.Minute)
				}
				return dial(ctx, network, addr)
			}
			tr := &retrip.Transport{Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second }), Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := base.RoundTrip(r)
				if err != nil {
					err = wrap(err)
				}
				return resp, err
			})}
			play.Do(t, tr, play.MustRequest(t, "POST", s.URL, strings.NewReader("once")))
			time.Sleep(2 * time.Minute)
			synctest.Wait()
			base.CloseIdleConnections()
		})
	}
}

// A nil pointer as an error is an error, wrapped or not, and proves nothing.
//
//retrip:promise P6
func TestProof_NilPointers(t *testing.T) {
	pointers := []error{(*net.OpError)(nil), (*net.DNSError)(nil), (*url.Error)(nil), (*retrip.Error)(nil), (*ownError)(nil)}
	var all []error
	for _, err := range pointers {
		all = append(all, err, fmt.Errorf("%T: %w", err, err), errors.Join(io.EOF, err), &net.OpError{Op: "dial", Err: err})
	}
	for i, err := range all {
		for method, want := range map[string]int{"GET": 4, "POST": 1} {
			play.Bubble(t, fmt.Sprintf("%d/%T/%s", i, err, method), func(t *testing.T) {
				base := play.Base(play.Err(err))
				_, got := (&retrip.Transport{Base: base, Policy: play.Steady, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}).RoundTrip(play.Request(t, method, nil))
				assert.Equal(t, want, base.Attempts())
				if method == "POST" {
					assert.Equal(t, err, got)
				} else {
					assert.Contains(t, got.Error(), "nil")
					assert.False(t, play.AsError(t, got).Timeout())
				}
			})
		}
	}
}

// GetBody and the cause of a context may also be such errors.
func TestProof_NilPointersOfTheCaller(t *testing.T) {
	pointer := error((*net.OpError)(nil))
	req := play.Request(t, "PUT", play.NewSend("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, pointer }
	_, err := (&retrip.Transport{Base: play.Base(play.Err(io.EOF)), Policy: retrip.Policy{MaxAttempts: 2}}).RoundTrip(req)
	assert.ErrorContains(t, err, "nil *net.OpError")

	for _, timeout := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithCancelCause(t.Context())
		base := play.Base(func(*http.Request) (*http.Response, error) {
			cancel(pointer)
			return nil, context.Canceled
		})
		_, err = (&retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: timeout}}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
		assert.ErrorContains(t, err, "canceled")
	}
}

type ownError struct{ timeout bool }

func (e *ownError) Error() string { return fmt.Sprint(e.timeout) }
func (e *ownError) Timeout() bool { return e.timeout }
