// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/alarm"
)

func TestWatched_Stalls(t *testing.T) {
	for _, limit := range []time.Duration{time.Nanosecond, 10 * time.Millisecond, 400 * time.Millisecond, time.Second, 1300 * time.Millisecond, time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			for i := range 40 {
				b := hanging(5 * i)
				w := watch(b, limit, b)
				for range i {
					time.Sleep(37 * limit / 100)
					_, err := io.ReadFull(w, make([]byte, 5))
					require.NoError(t, err)
				}
				began := time.Now()
				n, err := w.Read(make([]byte, 5))
				assert.Zero(t, n)
				assert.Equal(t, errStalled, err)
				took := time.Since(began)
				assert.True(t, took >= limit && took <= limit+500*time.Millisecond, "%v: %v", limit, took)
				_, err = w.Read(make([]byte, 5))
				assert.Equal(t, errStalled, err)
				require.NoError(t, w.Close())
				_, err = readOne(w)
				assert.Equal(t, http.ErrBodyReadAfterClose, err, "as other bodies say")
				synctest.Wait()
				assert.EqualValues(t, 1, w.stalls.(*stalls).n.Load())
			}
		})
	}
}

// A Read that returns no bytes is not progress.
func TestWatched_EmptyReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newPiece(nil)
		w := watch(reads{b, func([]byte) (int, error) { return 0, b.wait(10 * time.Millisecond) }}, time.Second, b)
		began := time.Now()
		var err error
		for err == nil {
			_, err = readOne(w)
		}
		assert.Equal(t, errStalled, err)
		assert.LessOrEqual(t, time.Since(began), 3*time.Second)
	})
}

// A body that ends just as it is cut has ended. After an error, the next Read is
// watched as usual; after Close, none is. An alarm that rings too late doesn't
// matter.
func TestWatched_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, n := newPiece(nil), 0
		w := watch(reads{b, func([]byte) (int, error) {
			switch n++; n {
			case 1:
				return 0, errReset
			case 2:
				<-b.cut
				return 0, io.EOF
			}
			time.Sleep(time.Minute)
			return 0, errReset
		}}, time.Second, b)
		read := func(want error, stalled int32) {
			t.Helper()
			_, err := readOne(w)
			assert.Equal(t, want, err)
			assert.Equal(t, stalled, w.stalls.(*stalls).n.Load())
		}
		read(errReset, 0)
		assert.Nil(t, w.alarm, "left behind")
		w.Ring(&alarm.Alarm{})
		read(io.EOF, 1)
		read(errStalled, 1)

		w = watch(w.ReadCloser, time.Second, b)
		require.NoError(t, w.Close())
		read(errReset, 0)
	})
}

// A Read that returns a wrong count ends the body: a reader that believed it would
// read beyond its buffer.
func TestWatched_WrongCount(t *testing.T) {
	for _, wrong := range []int{-1, 11, 1 << 20} {
		b := reads{newPiece(nil), func([]byte) (int, error) { return wrong, nil }}
		for name, r := range map[string]io.ReadCloser{
			"watched":               watch(b, time.Second, b),
			"joined, not continued": join(t, &Watched{ReadCloser: b, limit: time.Second}, nil, 0, 100),
		} {
			n, err := r.Read(make([]byte, 10))
			assert.Zero(t, n, name)
			assert.Equal(t, errNegative, err, name)
			require.NoError(t, r.Close())
		}
	}
}
