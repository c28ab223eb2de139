// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// TestResume_Mutants does the same through a Transport: each response to a
// request for the rest has one field changed.
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
			got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On, Budget: Unlimited, MaxAttempts: 8}})
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
