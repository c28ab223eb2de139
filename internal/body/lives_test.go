// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errBoom = errors.New("boom")

// life is a response body as a server, a network and a base may make it. It
// ends with its context, as net/http's bodies do.
type life struct {
	random *rand.Rand
	data   []byte
	err    error // at the end of data; nil means that a Read hangs there
	boom   int   // Reads until one panics
	ctx    context.Context
	end    context.CancelFunc
	closed atomic.Int32
	panics bool        // Close panics
	ended  atomic.Bool // a Read failed
	spent  atomic.Bool // data is empty
}

func (l *life) Read(p []byte) (_ int, err error) {
	l.ended.Store(true) // if it panics
	if l.boom--; l.boom == 0 {
		panic(errBoom)
	}
	defer func() { l.ended.Store(err != nil) }()
	if l.closed.Load() > 0 {
		return 0, http.ErrBodyReadAfterClose
	}
	select {
	case <-time.After(time.Duration(l.random.IntN(200)) * time.Millisecond):
	case <-l.ctx.Done():
		return 0, l.ctx.Err()
	}
	n := copy(p[:min(len(p), l.random.IntN(300))], l.data)
	l.data = l.data[n:]
	l.spent.Store(len(l.data) == 0)
	switch {
	case len(l.data) > 0 || n > 0 && l.random.IntN(2) == 0:
		return n, nil
	case l.err == nil && n == 0:
		<-l.ctx.Done()
		return 0, l.ctx.Err()
	}
	return n, l.err
}

func (l *life) Close() error {
	l.closed.Add(1)
	l.end()
	if l.panics {
		panic(errBoom)
	}
	return nil
}

// Cut ends the context, as an attempt does.
func (l *life) Cut() { l.end() }

// TestLives stacks the wrappers as the Transport does, and lets bodies break,
// stall, panic and end too early, while their reader, who may look ahead, reads
// in pieces of any size, with pauses, and closes at any time. The reader gets the bytes of the
// representation up to some point, and all of them if they end with EOF. Every
// body is closed once, every context has ended, and no alarm is left.
//
//retrip:promise P20
func TestLives(t *testing.T) {
	seeds := uint64(1000)
	if testing.Short() {
		seeds = 300
	}
	var whole, cut, panicked, closed int
	for seed := range seeds {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 4))
			truth := randomBytes(random, random.IntN(3000))
			first := int64(random.IntN(100))
			end := first + int64(len(truth))
			const idle = time.Second
			var lives []*life
			var asked []context.Context
			var alarms []*Watched
			stack := func(ctx context.Context, data []byte) io.ReadCloser {
				n := len(data)
				if random.IntN(5) > 0 {
					n = random.IntN(n + 1)
				}
				l := &life{random: rand.New(rand.NewPCG(random.Uint64(), 5)), data: data[:n], boom: -1}
				l.err = []error{nil, io.EOF, io.ErrUnexpectedEOF, errReset}[random.IntN(4)]
				if n == len(data) {
					l.err = io.EOF
				}
				if random.IntN(30) == 0 {
					l.boom = random.IntN(10)
				}
				l.panics = random.IntN(60) == 0
				l.ctx, l.end = context.WithCancel(ctx)
				l.spent.Store(n == 0)
				lives = append(lives, l)
				w := watch(l, idle, l)
				alarms = append(alarms, w)
				var b io.ReadCloser = w
				switch random.IntN(6) {
				case 0, 1:
					l.boom = -1 // reading ahead, it would end the request
					b = Ahead(b, random.Int64N(2000), int64(len(data)))
				case 2, 3:
					l.boom = -1
					b = AheadSoon(&http.Response{Body: b, ContentLength: -1}, random.Int64N(2000), time.Duration(random.IntN(300))*time.Millisecond)
				}
				return &Releasing{b, l, false}
			}
			patience := random.IntN(12)
			source := sourceFunc(func(ctx context.Context, at int64, err error) (Part, error) {
				require.True(t, first <= at && at < end, "asked for nothing")
				require.NotEqual(t, io.EOF, err)
				if n := len(asked); n > 0 {
					require.Error(t, asked[n-1].Err(), "seed %d: the continuation before it lives", seed)
				}
				asked = append(asked, ctx)
				last := lives[len(lives)-1]
				require.True(t, last.ended.Load() || last.spent.Load(), "seed %d: asked too early", seed)
				for _, l := range lives {
					require.EqualValues(t, 1, l.closed.Load(), "seed %d: not closed before the next one", seed)
				}
				select {
				case <-time.After(time.Duration(random.IntN(1000)) * time.Millisecond):
				case <-ctx.Done():
					if random.IntN(2) == 0 {
						return Part{}, errors.Join(err, ctx.Err())
					}
				}
				if patience--; patience < 0 {
					return Part{}, errors.Join(err, errRefused)
				}
				if random.IntN(60) == 0 {
					panic(errBoom)
				}
				skip := random.Int64N(at - first + 1)
				until := at + 1 + random.Int64N(end-at)
				return Part{Body: stack(ctx, truth[at-skip-first:until-first]), Skip: skip, Until: until}, nil
			})
			j := join(t, stack(t.Context(), truth), source, first, end)
			safely := func(f func() error) (err error) {
				defer func() {
					if v := recover(); v != nil {
						require.Equal(t, errBoom, v)
						err = errBoom
					}
				}()
				return f()
			}
			over := make(chan struct{})
			if random.IntN(3) == 0 {
				wait := time.Duration(random.IntN(5000)) * time.Millisecond
				go func() {
					defer close(over)
					time.Sleep(wait)
					began := time.Now()
					_ = safely(j.Close)
					require.Zero(t, time.Since(began))
				}()
			} else {
				close(over)
			}
			var got bytes.Buffer
			var err error
			buffer := make([]byte, 1+random.IntN(600))
			for err == nil || err == errBoom && random.IntN(2) == 0 {
				var n int
				if random.IntN(8) == 0 {
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
				}
				began := time.Now()
				err = safely(func() (err error) {
					n, err = j.Read(buffer[:random.IntN(len(buffer)+1)])
					return err
				})
				got.Write(buffer[:n])
				if n > 0 && patience > 0 {
					require.Less(t, time.Since(began), time.Minute)
				}
			}
			<-over
			require.True(t, bytes.HasPrefix(truth, got.Bytes()), "seed %d: other bytes", seed)
			switch {
			case err == io.EOF:
				whole++
				require.Equal(t, len(truth), got.Len(), "seed %d: EOF too early", seed)
			case errors.Is(err, errRefused):
				cut++
			case err == errBoom:
				panicked++
			case errors.Is(err, http.ErrBodyReadAfterClose):
				closed++
			default:
				// A continuation that panicked leaves the error that broke the body.
				require.True(t, err == errStalled || err == errReset || err == io.ErrUnexpectedEOF, "seed %d: %v", seed, err)
			}
			if n := len(asked); n > 0 && (err != errBoom || j.err != nil) {
				require.Error(t, asked[n-1].Err(), "seed %d: the last continuation lives without a Close", seed)
			}
			_ = safely(j.Close)
			synctest.Wait()
			for i, ctx := range asked {
				require.Error(t, ctx.Err(), "seed %d: continuation %d lives", seed, i)
			}
			for i, l := range lives {
				most := int32(1)
				if i == len(lives)-1 {
					most = 2 // the reader may close it twice
				}
				n := l.closed.Load()
				require.True(t, 0 < n && n <= most, "seed %d: body %d was closed %d times", seed, i, n)
				require.Error(t, l.ctx.Err(), "seed %d: context %d lives", seed, i)
				alarms[i].mu.Lock()
				require.Nil(t, alarms[i].alarm, "seed %d: alarm %d is set", seed, i)
				alarms[i].mu.Unlock()
			}
		})
	}
	for what, n := range map[string]int{"whole": whole, "cut": cut, "panicked": panicked, "closed": closed} {
		require.Greater(t, n, int(seeds)/50, what)
	}
}
