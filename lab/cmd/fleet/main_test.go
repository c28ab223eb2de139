// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestMain lets the test binary run as the program and as its child processes.
func TestMain(m *testing.M) {
	if os.Getenv("FLEET_PROGRAM") != "" {
		main()
	}
	os.Exit(m.Run())
}

// However the program ends, its processes and its redis-server end too. All of
// them hold the standard error of the program, which has no writer once all
// have ended.
func TestProgram_LeavesNothing(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("redis-server isn't installed: .ci/tools redis-server")
	}
	for _, signal := range []os.Signal{os.Kill, os.Interrupt} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(os.Args[0], "-processes", "4", "-clients", "40")
			cmd.Env = append(os.Environ(), "FLEET_PROGRAM=1")
			stderr, theirs, err := os.Pipe()
			require.NoError(t, err)
			defer stderr.Close()
			cmd.Stderr = theirs
			require.NoError(t, cmd.Start())
			theirs.Close()
			defer cmd.Process.Kill()
			lines := bufio.NewReader(stderr)
			for line := ""; !strings.Contains(line, "4 processes begin"); {
				line, err = lines.ReadString('\n')
				require.NoError(t, err)
			}
			require.NoError(t, cmd.Process.Signal(signal))
			assert.Error(t, cmd.Wait())
			require.NoError(t, stderr.SetReadDeadline(time.Now().Add(20*time.Second)))
			_, err = io.Copy(io.Discard, lines)
			assert.NoError(t, err, "somebody is left")
		})
	}
}

func TestProgram_NamesWhatIsWrong(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"-processes 0", "-processes is 0: it must be 1 to 1000"},
		{"-processes 64 -clients 63", "-clients is 63: it must be at least -processes, 64"},
		{"-end 14s", "-end is 14s: it must be at least 18s"},
	} {
		assert.ErrorContains(t, run(t.Context(), strings.Fields(test.args), io.Discard), test.want)
	}
	t.Setenv("PATH", "")
	assert.EqualError(t, run(t.Context(), nil, io.Discard), "redis-server isn't installed: .ci/tools redis-server")
}
