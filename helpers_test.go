// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// TestMain makes garbage collections rare. The tests produce much garbage on a
// small heap, which would be collected again and again.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	os.Exit(m.Run())
}

type roundTripperFunc = testenv.RoundTripper

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
