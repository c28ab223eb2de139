// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

type (
	readerFunc       = testenv.Reader
	roundTripperFunc = testenv.RoundTripper
)

var (
	do   = testenv.Do
	drop = testenv.Drop
	try  = testenv.Try
)

func mustRead(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(data)
}

// must returns v. It panics if err isn't nil.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// resolved returns the rules of p as Transport.Policy.
func resolved(t testing.TB, p Policy) *rules {
	t.Helper()
	r, err := p.resolve(defaults)
	require.NoError(t, err)
	return r
}
