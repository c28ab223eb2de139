// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fleetredis

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// stop freezes the server: it accepts connections and answers nothing.
func stop(t *testing.T, s *server) {
	t.Helper()
	require.NoError(t, s.process.Process.Signal(syscall.SIGSTOP))
}

func cont(t *testing.T, s *server) {
	t.Helper()
	require.NoError(t, s.process.Process.Signal(syscall.SIGCONT))
}
