// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// A response counts as one, whatever fields the base left out.
//
//retrip:promise P1
func TestTransport_NoStatus(t *testing.T) {
	for name, policy := range map[string]retrip.Policy{"plain": {}, "derived": {AttemptTimeout: time.Second}} {
		play.Bubble(t, name, func(t *testing.T) {
			base := play.Base(play.Reply(0))
			resp := do(t, &retrip.Transport{Base: base, Policy: policy}, play.Request(t, http.MethodGet, nil))
			assert.Equal(t, 1, base.Attempts())
			play.Finish(t, resp)
		})
	}
}

// halfClosed is the body of an upgraded connection.
type halfClosed struct {
	io.ReadWriteCloser
	closed bool
}

func (b *halfClosed) CloseWrite() error { b.closed = true; return nil }

// A proxy closes one direction of an upgraded connection.
//
//retrip:promise P1 P4
func TestTransport_UpgradeCloseWrite(t *testing.T) {
	for name, able := range map[string]bool{"able": true, "unable": false} {
		for _, status := range []int{101, 200} { // a CONNECT may be answered by a 200
			for _, policy := range []retrip.Policy{{AttemptTimeout: time.Second}, {Resume: time.Minute, BodyIdleTimeout: time.Second, WholeBody: 1000}} {
				play.Bubble(t, fmt.Sprint(name, status, policy.Resume), func(t *testing.T) {
					var rwc struct {
						io.Reader
						io.Writer
						io.Closer
					}
					full := &halfClosed{ReadWriteCloser: rwc}
					transport := &retrip.Transport{Policy: policy}
					transport.Base = play.Base(func(*http.Request) (*http.Response, error) {
						resp := &http.Response{StatusCode: status, Body: full}
						if !able {
							resp.Body = rwc
						}
						return resp, nil
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					resp, err := transport.RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
					require.NoError(t, err)
					require.Implements(t, (*io.ReadWriteCloser)(nil), resp.Body)
					body, ok := resp.Body.(interface{ CloseWrite() error })
					require.True(t, ok)
					err = body.CloseWrite()
					assert.Equal(t, able, full.closed)
					if !able {
						assert.ErrorIs(t, err, http.ErrNotSupported)
					}
				})
			}
		}
	}
}

// Over HTTP/2, a server may end its response before it has read the request.
// The rest of the request is still sent.
//
//retrip:promise P4
func TestTransport_ResponseEndsBeforeTheRequest(t *testing.T) {
	for _, tt := range []struct {
		name           string
		major          int
		body           string // request body
		empty          bool   // the response has no body
		atEnd, onClose bool   // whether the attempt's context has ended by then
	}{
		{"HTTP/2 upload", 2, "upload", false, false, true},
		{"HTTP/2 upload, no response body", 2, "upload", true, false, true},
		{"HTTP/2 without a body", 2, "", false, true, true},
		{"HTTP/2 without any body", 2, "", true, true, true},
		{"HTTP/1.1 upload", 1, "upload", false, true, true},
	} {
		for _, wholeBody := range []int64{retrip.Off, 2, 1000} {
			for _, streamed := range []bool{false, true} {
				t.Run(fmt.Sprint(tt.name, " WholeBody ", wholeBody, " streamed ", streamed), func(t *testing.T) {
					t.Parallel()
					var attempt context.Context
					base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
						attempt = r.Context()
						if r.Body != nil {
							// What has been read may still wait for room in the stream.
							_, _ = io.Copy(io.Discard, r.Body)
						}
						body := io.NopCloser(strings.NewReader("done"))
						if tt.empty {
							body = http.NoBody
						}
						return &http.Response{StatusCode: 200, ProtoMajor: tt.major, Body: body, Request: r}, nil
					})
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					req := play.Must(http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com/", strings.NewReader(tt.body)))
					if streamed && tt.body != "" {
						req.GetBody = nil
					}
					resp, err := (&retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: time.Minute, WholeBody: wholeBody}}).RoundTrip(req)
					require.NoError(t, err)
					_, err = io.Copy(io.Discard, resp.Body)
					require.NoError(t, err)
					assert.Equal(t, tt.atEnd, attempt.Err() != nil, "at the end of the response")
					require.NoError(t, resp.Body.Close())
					assert.Equal(t, tt.onClose, attempt.Err() != nil, "when it is closed")
				})
			}
		}
	}
}

// held is a body whose Read and Close take their time.
type held struct{ read, close time.Duration }

func (b held) Read([]byte) (int, error) { time.Sleep(b.read); return 1, nil }
func (b held) Close() error             { time.Sleep(b.close); return nil }

// The body that a retry discards leaves the retry time before the deadline. If it
// doesn't, there is no retry.
//
//retrip:promise P10
func TestTransport_DiscardsBeforeTheDeadline(t *testing.T) {
	const deadline = 40 * time.Millisecond
	for name, tt := range map[string]struct {
		body     held
		attempts int
	}{
		"a body that never ends": {held{read: time.Millisecond}, 2},
		"a slow body":            {held{read: 15 * time.Millisecond}, 2},
		"a Close that hangs":     {held{read: time.Millisecond, close: time.Minute}, 1},
	} {
		for _, ofPolicy := range []bool{true, false} {
			bubble(t, fmt.Sprint(name, ofPolicy), func(t *testing.T) {
				var began []time.Duration
				start, ctx, policy := time.Now(), t.Context(), retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}}
				if policy.Deadline = deadline; !ofPolicy {
					policy.Deadline = 0
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, deadline)
					defer cancel()
				}
				base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
					began = append(began, time.Since(start))
					if len(began) > 1 {
						return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
					}
					return &http.Response{StatusCode: 503, Body: tt.body, ContentLength: -1, Request: r}, nil
				})
				tr := &retrip.Transport{Base: base, Policy: policy}
				defer time.Sleep(time.Hour) // until the bodies are done
				resp, err := tr.RoundTrip(play.Request(t, http.MethodGet, nil).WithContext(ctx))
				require.Len(t, began, tt.attempts)
				for _, at := range began {
					assert.Less(t, at, deadline)
				}
				if tt.attempts == 2 {
					require.NoError(t, err)
					play.Finish(t, resp)
					return
				}
				var e *retrip.Error
				require.ErrorAs(t, err, &e)
				assert.Equal(t, retrip.ReasonDeadline, e.Reason)
				assert.Equal(t, 503, e.StatusCode)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Equal(t, 5., tr.HostStates()[0].Tokens)
			})
		}
	}
}
