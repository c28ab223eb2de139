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
	"github.com/retrip/retrip/internal/testenv"
)

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
