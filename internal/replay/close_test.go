// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// stalledBody yields its text and then blocks until it is closed.
type stalledBody struct {
	io.Reader
	closed chan struct{}
	once   sync.Once
}

func (b *stalledBody) Read(p []byte) (int, error) {
	if n, err := b.Reader.Read(p); err == nil {
		return n, nil
	}
	<-b.closed
	return 0, io.ErrClosedPipe
}

func (b *stalledBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// The caller's body is closed when the last attempt closes its reader, which
// may be after RoundTrip has returned. An earlier attempt doesn't close it.
//
//retrip:promise P2
func TestReplay_ClosedWithTheLastReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var readers []io.ReadCloser
		base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
			readers = append(readers, req.Body)
			status := http.StatusServiceUnavailable
			if len(readers) == 2 {
				status = http.StatusOK
			}
			return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
		})
		var closed atomic.Int64
		body := closeFunc{strings.NewReader("text"), func() { closed.Add(1) }}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
		require.NoError(t, err)
		resp, err := (&retrip.Transport{Base: base}).RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Len(t, readers, 2)
		readers[0].Close()
		assert.Zero(t, closed.Load())
		for range 3 {
			readers[1].Close()
			assert.Equal(t, int64(1), closed.Load())
		}
	})
}

// A base that panics no longer uses its reader, closed or not.
//
//retrip:promise P5
func TestReplay_ClosedAfterAPanicOfTheBase(t *testing.T) {
	var reader io.ReadCloser
	base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		reader = req.Body
		panic("base")
	})
	closed := 0
	body := closeFunc{strings.NewReader("text"), func() { closed++ }}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://example.com/", body)
	require.NoError(t, err)
	assert.PanicsWithValue(t, "base", func() { _, _ = (&retrip.Transport{Base: base}).RoundTrip(req) })
	assert.Equal(t, 1, closed)
	n, err := reader.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Error(t, err)
}

type closeFunc struct {
	io.Reader
	f func()
}

func (c closeFunc) Close() error {
	c.f()
	return nil
}

// The caller's body is closed once, whatever happens.
//
//retrip:promise P2
func TestReplay_ClosedOnce(t *testing.T) {
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	fine := retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}, Budget: retrip.Off}
	for _, tt := range []struct {
		name   string
		method string
		policy retrip.Policy
		ctx    context.Context
		steps  []play.Step
	}{
		{"success", "PUT", fine, nil, []play.Step{play.Reply(200)}},
		{"recovered", "PUT", fine, nil, []play.Step{play.Reply(503), play.Reply(200)}},
		{"used up", "PUT", fine, nil, []play.Step{play.Reply(503)}},
		{"one attempt", "PUT", retrip.Policy{MaxAttempts: 1}, nil, []play.Step{play.Reply(503)}},
		{"errors", "PUT", fine, nil, []play.Step{play.Err(errors.New("reset"))}},
		{"not idempotent", "POST", fine, nil, []play.Step{play.Reply(503)}},
		{"context done", "PUT", fine, canceled, []play.Step{play.Reply(200)}},
		{"policy invalid", "PUT", retrip.Policy{MaxAttempts: -3}, nil, []play.Step{play.Reply(200)}},
		{"policy of the context invalid", "PUT", fine, retrip.WithPolicy(context.Background(), retrip.Policy{MaxAttempts: -3}), []play.Step{play.Reply(200)}},
		{"nothing from the base", "PUT", fine, nil, []play.Step{play.Err(nil)}},
		{"with a key of ours", "POST", retrip.Policy{IdempotencyKey: retrip.On, Backoff: retrip.Backoff{Base: retrip.Off}}, nil, []play.Step{play.Reply(503), play.Reply(200)}},
	} {
		for _, getBody := range []bool{false, true} {
			play.Bubble(t, fmt.Sprint(tt.name, " GetBody ", getBody), func(t *testing.T) {
				body := play.NewSend("payload")
				req := play.Request(t, tt.method, body)
				if tt.ctx != nil {
					req = req.WithContext(tt.ctx)
				}
				if getBody {
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("payload")), nil }
				}
				base := play.Base(tt.steps...)
				resp, err := (&retrip.Transport{Base: base, Policy: tt.policy}).RoundTrip(req)
				if err == nil {
					play.Finish(t, resp)
				}
				assert.EqualValues(t, 1, body.Closed.Load())
				for _, sent := range base.Sent {
					assert.Equal(t, "payload", sent)
				}
				assert.Equal(t, len(base.Bodies), base.ClosedBodies())
			})
		}
	}
}

// net/http's HTTP/2 closes a body whose connection turned out to be unusable,
// and passes the same body to another connection.
//
//retrip:promise P7
func TestReplay_ClosedBeforeItIsRead(t *testing.T) {
	for name, body := range map[string]func() io.Reader{
		"stream":  func() io.Reader { return play.Stream([]byte("payload")) },
		"section": func() io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) },
	} {
		play.Bubble(t, name, func(t *testing.T) {
			sent := play.NewSend("")
			sent.Reader = body()
			var old io.ReadCloser
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				assert.NoError(t, r.Body.Close())
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(got))
				assert.NoError(t, r.Body.Close())
				n, err := r.Body.Read(make([]byte, 1))
				assert.Zero(t, n)
				assert.Error(t, err, "closed after the end was read")
				return play.Reply(503)(r)
			}, func(r *http.Request) (*http.Response, error) {
				old = r.Body // neither read nor closed
				return play.Reply(503)(r)
			}, func(r *http.Request) (*http.Response, error) {
				n, err := old.Read(make([]byte, 1))
				assert.Zero(t, n)
				assert.Error(t, err, "superseded")
				got, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(got))
				assert.NoError(t, r.Body.Close())
				return play.Reply(200)(r)
			})
			base.Keep = true
			req := play.Request(t, "PUT", nil)
			req.Body = sent
			if name == "section" {
				req.Body = io.NopCloser(body())
			}
			play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, req)
			if name == "stream" {
				assert.EqualValues(t, 1, sent.Closed.Load())
			}
		})
	}
	play.Bubble(t, "and not closed again", func(t *testing.T) {
		// net/http closes a body once, whatever happens to it then.
		sent := play.NewSend("payload")
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			assert.NoError(t, r.Body.Close())
			got, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			assert.Equal(t, "payload", string(got))
			return play.Reply(200)(r)
		})
		base.Keep = true
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "PUT", sent))
		synctest.Wait()
		assert.EqualValues(t, 1, sent.Closed.Load())
	})
	play.Bubble(t, "when nobody will send it any more", func(t *testing.T) {
		sent := play.NewSend("payload")
		var last io.ReadCloser
		base := play.Base(func(r *http.Request) (*http.Response, error) {
			last = r.Body
			assert.NoError(t, r.Body.Close())
			return play.Reply(200)(r)
		})
		base.Keep = true
		play.Do(t, &retrip.Transport{Base: base, Policy: play.Steady}, play.Request(t, "PUT", sent))
		n, err := last.Read(make([]byte, 1))
		assert.Zero(t, n)
		assert.Error(t, err)
		assert.EqualValues(t, 1, sent.Closed.Load())
	})
}
