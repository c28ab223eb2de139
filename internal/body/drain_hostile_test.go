// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body_test

import (
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
	"github.com/retrip/retrip/internal/play"
)

// ownBody is a body of a type that retrip doesn't know. It records how it was
// closed.
type ownBody struct {
	read    func(p []byte) (int, error)
	onClose func()
	reading atomic.Int32
	closed  atomic.Int32
	amid    atomic.Bool // closed during a Read
}

func (b *ownBody) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1)
	return b.read(p)
}

func (b *ownBody) Close() error {
	b.closed.Add(1)
	b.amid.Store(b.reading.Load() > 0)
	if b.onClose != nil {
		b.onClose()
	}
	return nil
}

// No discarded body can hold up RoundTrip. Each is closed once, and during a
// Read only if its time is up.
//
//retrip:promise P12
func TestDrain_HostileBodies(t *testing.T) {
	type tell struct {
		body *ownBody
		amid bool          // it must be closed during a Read
		took time.Duration // maximum duration for two such bodies, with waits of 0
	}
	slow := func(d time.Duration) func([]byte) (int, error) {
		return func([]byte) (int, error) { time.Sleep(d); return 0, io.EOF }
	}
	for name, makes := range map[string]func(end chan struct{}) tell{
		"Close doesn't end Read": func(end chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { <-end; return 0, io.EOF }}, true, 100 * time.Millisecond}
		},
		"nothing for ever": func(chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { return 0, nil }}, false, 0}
		},
		"nothing, slowly, for ever": func(chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { time.Sleep(30 * time.Millisecond); return 0, nil }}, true, 100 * time.Millisecond}
		},
		"less than nothing": func(chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { return -1, nil }}, false, 0}
		},
		"in time": func(chan struct{}) tell {
			return tell{&ownBody{read: slow(49 * time.Millisecond)}, false, 98 * time.Millisecond}
		},
		"too late": func(chan struct{}) tell {
			return tell{&ownBody{read: slow(51 * time.Millisecond)}, true, 100 * time.Millisecond}
		},
		"Close doesn't return": func(end chan struct{}) tell {
			return tell{&ownBody{read: slow(0), onClose: func() { <-end }}, false, 200 * time.Millisecond}
		},
		"neither returns": func(end chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { <-end; return 0, io.EOF }, onClose: func() { <-end }}, true, 200 * time.Millisecond}
		},
		"panics when nobody listens any more": func(end chan struct{}) tell {
			return tell{&ownBody{read: func([]byte) (int, error) { <-end; panic("too late") }}, true, 100 * time.Millisecond}
		},
		"longer than is drained": func(end chan struct{}) tell {
			return tell{&ownBody{read: func(p []byte) (int, error) { return len(p), nil }}, false, 0}
		},
	} {
		for _, length := range []int64{-1, 10, 1 << 40} {
			play.Bubble(t, fmt.Sprintf("%s/length %d", name, length), func(t *testing.T) {
				end := make(chan struct{})
				var tells []tell
				answer := func(r *http.Request) (*http.Response, error) {
					tell := makes(end)
					tells = append(tells, tell)
					return &http.Response{StatusCode: 503, Header: http.Header{}, ContentLength: length, Body: tell.body, Request: r}, nil
				}
				base := play.Base(answer, answer, play.Reply(200))
				tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.Backoff.Base = retrip.Off })}
				start := time.Now()
				play.Do(t, tr, play.Request(t, "GET", nil))
				assert.LessOrEqual(t, time.Since(start), tells[0].took)
				synctest.Wait()
				close(end)
				synctest.Wait()
				time.Sleep(time.Second)
				require.Len(t, tells, 2)
				for _, tell := range tells {
					assert.EqualValues(t, 1, tell.body.closed.Load())
					assert.Equal(t, tell.amid && length != 1<<40, tell.body.amid.Load())
				}
			})
		}
		play.Bubble(t, name+"/caller gone", func(t *testing.T) {
			end := make(chan struct{})
			var body *ownBody
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				body = makes(end).body
				return &http.Response{StatusCode: 503, Header: http.Header{"Retry-After": {"1"}}, ContentLength: -1, Body: body, Request: r}, nil
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(10*time.Millisecond, cancel)
			start := time.Now()
			_, err := (&retrip.Transport{Base: base, Policy: play.Steady}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
			assert.ErrorIs(t, err, context.Canceled)
			assert.Equal(t, 10*time.Millisecond, time.Since(start))
			close(end)
			time.Sleep(time.Second)
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
}

// A response that comes with an error, or too late, is closed and can't hold up
// RoundTrip either.
//
//retrip:promise P12
func TestDrain_DismissedBodies(t *testing.T) {
	for name, answer := range map[string]func(*http.Request, *http.Response) (*http.Response, error){
		"with an error": func(_ *http.Request, resp *http.Response) (*http.Response, error) { return resp, io.ErrUnexpectedEOF },
		"too late": func(r *http.Request, resp *http.Response) (*http.Response, error) {
			<-r.Context().Done()
			return resp, nil
		},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			end := make(chan struct{})
			body := &ownBody{onClose: func() { <-end }}
			base := play.Base(func(r *http.Request) (*http.Response, error) {
				return answer(r, &http.Response{StatusCode: 200, Body: body, Request: r})
			}, play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout, p.Backoff.Base = time.Second, retrip.Off })}
			start := time.Now()
			play.Do(t, tr, play.Request(t, "GET", nil))
			assert.LessOrEqual(t, time.Since(start), 1050*time.Millisecond)
			close(end)
			synctest.Wait()
			assert.EqualValues(t, 1, body.closed.Load())
		})
	}
}
