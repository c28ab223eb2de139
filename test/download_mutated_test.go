// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// TestResume_Mutants changes one field of each response to a request for the rest. The
// changes are finer than what the worlds' servers do.
func TestResume_Mutants(t *testing.T) {
	runs := 10_000
	if testing.Short() || testenv.Race {
		runs = 1000
	}
	synctest.Test(t, func(t *testing.T) {
		m := testenv.Mutator{Rand: rand.New(rand.NewPCG(17, 206))}
		data := randomBytes(3000, 1)
		whole := 0
		for i := range runs {
			s := &store{etag: `"a"`, data: data, at: func(i int) (int, error) {
				if i > 0 && m.IntN(2) == 0 {
					return -1, nil
				}
				return m.IntN(2000), io.ErrUnexpectedEOF
			}}
			s.lie = func(i int, resp *http.Response) {
				if i > 0 {
					m.Mutate(resp.Header)
				}
			}
			got, err := fetch(t, &retrip.Transport{Base: s, Policy: retrip.Policy{Resume: time.Minute, Budget: retrip.Off, MaxAttempts: 8}})
			if err == nil {
				whole++
				require.True(t, bytes.Equal(data, got), "%d", i)
			} else {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.True(t, bytes.HasPrefix(data, got), "%d", i)
			}
		}
		assert.Greater(t, whole, runs/50, "some changes change nothing")
		assert.Less(t, whole, runs/2)
		t.Log(whole, "whole")
	})
}

// TestResume_TrueRanges: a server answers every request with any part of a file,
// under any status. If its Content-Range says which part that is, no body is
// spliced.
//
//retrip:promise P20
func TestResume_TrueRanges(t *testing.T) {
	runs := 20_000
	if testing.Short() || testenv.Race {
		runs = 2000
	}
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(18, 206))
		const size = 1000
		data := randomBytes(size, 1)
		whole, cut := 0, 0
		for i := range runs {
			begins, served := 0, 0
			base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
				from, to := 0, size
				if asked, ok := strings.CutPrefix(req.Header.Get("Range"), "bytes="); ok && random.IntN(3) > 0 {
					_, err := fmt.Sscanf(asked, "%d-%d", &from, &to)
					require.NoError(t, err)
					to++
				}
				if random.IntN(2) == 0 {
					from = random.IntN(min(from+1, size-1) + 1)
					to = from + 1 + random.IntN(size-from)
				}
				resp := &http.Response{StatusCode: []int{200, 200, 206, 206, 203, 226}[random.IntN(6)], Header: http.Header{"Etag": {`"a"`}}, Request: req, ContentLength: int64(to - from)}
				if resp.StatusCode != 200 || to-from < size || random.IntN(2) == 0 {
					resp.Header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%s", from, to-1, []string{"1000", "*"}[random.IntN(2)]))
				}
				if served++; served == 1 {
					begins = from
				}
				resp.Body = io.NopCloser(bytes.NewReader(data[from:to]))
				if random.IntN(2) == 0 {
					resp.Body = io.NopCloser(ending(req.Context(), bytes.NewReader(data[from:from+random.IntN(to-from)]), io.ErrUnexpectedEOF))
				}
				return resp, nil
			})
			var header []string
			if random.IntN(2) == 0 {
				first := random.IntN(size)
				header = []string{"Range", fmt.Sprintf("bytes=%d-%d", first, first+random.IntN(size-first))}
			}
			got, err := fetch(t, &retrip.Transport{Base: base, Policy: retrip.Policy{Resume: time.Minute, Budget: retrip.Off, MaxAttempts: 8}}, header...)
			require.True(t, bytes.HasPrefix(data[begins:], got), "run %d: another byte than that of its offset", i)
			if err == nil {
				whole++
			} else {
				cut++
			}
		}
		assert.Greater(t, whole, runs/10)
		assert.Greater(t, cut, runs/10)
	})
}
