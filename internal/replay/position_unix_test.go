// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package replay_test

import (
	"io"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A file that is closed may share its position with another descriptor, such as that of a
// shell that has passed it on.
func init() {
	allKept["file"] = func(t testing.TB) (io.Reader, func() int) {
		f := tempFile(t)
		fd, err := syscall.Dup(int(f.Fd()))
		require.NoError(t, err)
		shares := os.NewFile(uintptr(fd), "shares")
		t.Cleanup(func() { shares.Close() })
		return f, position(t, shares)
	}
}
