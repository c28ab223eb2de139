// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// Whatever is read ahead, in whatever order, the reader gets the whole body.
//
//retrip:promise P20
func TestPrefixed_Model(t *testing.T) {
	for seed := range uint64(testenv.Size(300, 20_000)) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 10))
			content := randomBytes(random, random.IntN(40_000))
			var r io.Reader = bytes.NewReader(content)
			if random.IntN(2) == 0 {
				r = iotest.DataErrReader(r)
			}
			moods := rand.New(rand.NewPCG(seed, 11)) // of the reader's goroutine
			source := testenv.Reader(func(p []byte) (int, error) {
				if moods.IntN(4) == 0 {
					time.Sleep(time.Duration(moods.IntN(100)) * time.Millisecond)
				}
				if len(p) == 0 {
					return 0, nil // iotest's reader would never return
				}
				return r.Read(p[:min(len(p), 1+moods.IntN(9000))])
			})
			length := int64(-1)
			if random.IntN(2) == 0 {
				length = int64(len(content))
			}
			var b io.ReadCloser = io.NopCloser(source)
			read := 0
			for read < len(content) {
				left := len(content) - read
				switch random.IntN(3) {
				case 0:
					n := random.Int64N(30_000)
					p := Ahead(b, n, length)
					require.GreaterOrEqual(t, p.n, min(n, int64(left)), "seed %d", seed)
					b = p
				case 1:
					n := 1 + random.IntN(10_000)
					p := AheadSoon(&http.Response{Body: b, ContentLength: length}, int64(n), 50*time.Millisecond)
					got := p.Bytes(n)
					require.NotEmpty(t, got, "seed %d", seed)
					_ = append(got, "more"...) // leaves the body as it is
					require.True(t, bytes.HasPrefix(content[read:], got), "seed %d", seed)
					require.True(t, length < 0 || len(got) == min(n, left), "seed %d", seed)
					b = p
				default:
					p := make([]byte, random.IntN(12_000))
					n, err := b.Read(p)
					require.Equal(t, content[read:read+n], p[:n], "seed %d", seed)
					read += n
					require.True(t, err == nil || err == io.EOF && read == len(content), "seed %d: %v", seed, err)
				}
			}
			_, err := io.ReadFull(b, make([]byte, 1))
			require.Equal(t, io.EOF, err, "seed %d", seed)
		})
	}
}

// Reading ahead takes as much memory as there are bytes, and an announced length
// alone takes little.
//
//retrip:promise P15
func TestAhead_Memory(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	const limit = 64 << 10
	for _, tt := range []struct {
		size      int
		announced int64
		most      int
	}{
		{limit, limit, limit}, {limit, -1, limit}, {2 * limit, -1, limit}, {2 * limit, 2 * limit, limit},
		{500, 500, 512}, {500, -1, 4 << 10}, {17_000, 17_000, 18 << 10}, {17_000, -1, 32 << 10}, {3, 1 << 60, limit},
	} {
		t.Run(fmt.Sprint(tt.size, " of ", tt.announced), func(t *testing.T) {
			content := make([]byte, tt.size)
			source := bytes.NewReader(content)
			body := io.NopCloser(source)
			read := func() {
				source.Reset(content)
				require.Equal(t, int64(min(tt.size, limit)), Ahead(body, limit, tt.announced).n)
			}
			read()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 100 {
				read()
			}
			runtime.ReadMemStats(&after)
			assert.Less(t, (after.TotalAlloc-before.TotalAlloc)/100, uint64(tt.most+700))
		})
	}
}

// silent is a body that yields one byte and then none until it ends. If it is deaf, its
// Close waits for a Read, as that of http.ReadResponse.
type silent struct {
	begun, deaf, panics bool
	end                 chan error
	once                sync.Once
}

func (b *silent) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		return copy(p[:1], "x"), nil
	}
	err := <-b.end
	if b.panics {
		panic(err)
	}
	return 0, err
}

func (b *silent) Close() error {
	if b.deaf {
		return <-b.end
	}
	b.once.Do(func() { b.end <- http.ErrBodyReadAfterClose })
	return nil
}

// listen ends a Read and a Close of a deaf body.
func (b *silent) listen() {
	if b.deaf {
		b.end <- http.ErrBodyReadAfterClose
		b.end <- http.ErrBodyReadAfterClose
	}
}

// soon reads ahead for a second.
func soon(b io.ReadCloser) *Prefixed {
	return AheadSoon(&http.Response{Body: b, ContentLength: -1}, 10, time.Second)
}

// Close ends a Read that is still in progress, and the goroutine that waits for
// it. If it can't, it returns all the same. After Close, nobody waits for a Read.
//
//retrip:promise P13
func TestAheadSoon_Close(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		testenv.Bubble(t, fmt.Sprint("deaf ", deaf), func(t *testing.T) {
			source := &silent{end: make(chan error, 1), deaf: deaf}
			b := soon(source)
			assert.Equal(t, "x", string(b.Bytes(10)))
			read := make(chan error)
			go func() {
				_, err := io.ReadAll(b)
				read <- err
			}()
			synctest.Wait()
			began := time.Now()
			require.NoError(t, b.Close())
			assert.LessOrEqual(t, time.Since(began), DrainLeast)
			source.listen()
			assert.Equal(t, http.ErrBodyReadAfterClose, <-read)
		})
		testenv.Bubble(t, fmt.Sprint("read later, deaf ", deaf), func(t *testing.T) {
			source := &silent{end: make(chan error, 1), deaf: deaf}
			b := soon(source)
			require.NoError(t, b.Close())
			_, err := readOne(b)
			assert.Equal(t, http.ErrBodyReadAfterClose, err)
			source.listen()
		})
	}
}

// A panic of a body reaches whoever reads it, and not the process.
//
//retrip:promise P5
func TestAheadSoon_Panic(t *testing.T) {
	boom := errors.New("boom")
	for _, later := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			source := &silent{end: make(chan error, 1), panics: true}
			if !later {
				source.end <- boom
				assert.PanicsWithValue(t, boom, func() { soon(source) })
				return
			}
			b := soon(source)
			_, err := readOne(b)
			require.NoError(t, err)
			source.end <- boom
			assert.PanicsWithValue(t, boom, func() { _, _ = readOne(b) })
		})
	}
}
