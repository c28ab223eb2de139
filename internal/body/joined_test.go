// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package body

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// The reader never gets bytes beyond the end of a part.
func TestJoined_PartTooLong(t *testing.T) {
	j := join(t, pieceOf("abc"), sourceFunc(func(context.Context, int64, error) (Part, error) {
		return Part{Body: pieceOf("--def?"), Skip: 2, Until: 6}, nil
	}), 0, 6)
	got, err := io.ReadAll(j)
	require.NoError(t, err)
	assert.Equal(t, "abcdef", string(got))
}

// If a part ends while its overlap is skipped, the source gets that error. A
// body that returns no bytes at all is given up.
func TestJoined_SkipBreaks(t *testing.T) {
	for name, c := range map[string]struct {
		r    io.Reader
		err  error
		want error
	}{
		"reset":    {r: bytes.NewReader([]byte("ab")), err: errReset, want: errReset},
		"end":      {r: bytes.NewReader([]byte("ab")), want: io.ErrUnexpectedEOF},
		"nothing":  {r: testenv.Reader(func([]byte) (int, error) { return 0, nil }), want: io.ErrNoProgress},
		"negative": {r: testenv.Reader(func([]byte) (int, error) { return -1, nil }), want: errNegative},
		"too much": {r: testenv.Reader(func(p []byte) (int, error) { return len(p) + 1, nil }), want: errNegative},
	} {
		var met []error
		j := join(t, pieceOf("abc"), sourceFunc(func(_ context.Context, at int64, err error) (Part, error) {
			if met = append(met, err); len(met) > 1 {
				return Part{}, err
			}
			b := newPiece(c.r)
			b.err = c.err
			return Part{Body: b, Skip: 3, Until: 6}, nil
		}), 0, 6)
		got, err := io.ReadAll(j)
		assert.Equal(t, "abc", string(got), name)
		assert.Equal(t, c.want, err, name)
		assert.Equal(t, []error{io.ErrUnexpectedEOF, c.want}, met, name)
	}
}

// TestJoined_Repeated compares what a part repeats with the last bytes that the
// reader got, however the reader and the part deliver them.
//
//retrip:promise P20
func TestJoined_Repeated(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 11))
	for i := range 3000 {
		truth := randomBytes(random, 2+random.IntN(300))
		j := join(t, newPiece(bytes.NewReader(truth)), nil, 0, 1<<40)
		keep := 1 + random.IntN(100)
		j.Keep(keep)
		at := 0
		for want := random.IntN(len(truth)); at < want; {
			n, err := j.Read(make([]byte, 1+random.IntN(min(want-at, 1+random.IntN(150)))))
			require.NoError(t, err)
			at += n
		}
		n := random.IntN(min(at, keep) + 1)
		skip := n + random.IntN(at-n+1)
		if n == 0 {
			continue
		}
		part := bytes.Clone(truth[at-skip:])
		wrong := random.IntN(skip + 1)
		if wrong < skip {
			part[wrong]++
		}
		short := random.IntN(4) == 0
		if short {
			part = part[:random.IntN(skip)]
		}
		var r io.Reader = bytes.NewReader(part)
		if random.IntN(2) == 0 {
			r = iotest.OneByteReader(r)
		}
		if random.IntN(2) == 0 {
			r = iotest.DataErrReader(r)
		}
		same, err := j.Repeated(r, int64(skip), int64(n))
		if short {
			require.Equal(t, io.ErrUnexpectedEOF, err, "run %d", i)
			continue
		}
		require.NoError(t, err, "run %d", i)
		require.Equal(t, wrong < skip-n || wrong == skip, same, "run %d: keep %d, at %d, skip %d, n %d, wrong %d", i, keep, at, skip, n, wrong)
		rest, err := io.ReadAll(r)
		require.NoError(t, err)
		require.Equal(t, truth[at:], rest, "run %d", i)
	}
}

// A part that repeats too little, or whose Reads go wrong, repeats nothing.
//
//retrip:promise P20
func TestJoined_RepeatedWrongly(t *testing.T) {
	j := join(t, pieceOf("abc"), nil, 0, 10)
	j.Keep(5)
	_, err := io.ReadFull(j, make([]byte, 3))
	require.NoError(t, err)
	for _, c := range [][2]int64{{2, 3}, {10, 4}} {
		same, err := j.Repeated(bytes.NewReader([]byte("abcabcabcabc")), c[0], c[1])
		assert.NoError(t, err)
		assert.False(t, same)
	}
	for want, f := range map[error]testenv.Reader{
		errNegative:      func([]byte) (int, error) { return -1, nil },
		io.ErrNoProgress: func([]byte) (int, error) { return 0, nil },
		errReset:         func(p []byte) (int, error) { return copy(p, "a"), errReset },
	} {
		_, err := j.Repeated(f, 3, 3)
		assert.Equal(t, want, err)
	}
	_, err = j.Repeated(testenv.Reader(func(p []byte) (int, error) { return len(p) + 1, nil }), 3, 3)
	assert.Equal(t, errNegative, err)
}
