// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// watched is a running watch of a file.
type watched struct {
	t         *testing.T
	path      string
	transport *retrip.Transport
	hangups   chan os.Signal

	mu   sync.Mutex
	told []error
}

// watching runs f while the file at path is watched. All waits are virtual.
func watching(t *testing.T, path string, f func(w *watched)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, path: path, transport: &retrip.Transport{}, hangups: make(chan os.Signal, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		p := &policies{path: path, transport: w.transport, told: w.tell}
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.watch(ctx, w.hangups, 5*time.Second)
		}()
		synctest.Wait()
		f(w)
		cancel()
		<-done
	})
}

func (w *watched) tell(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told = append(w.told, err)
}

// expect checks how many attempts a host gets, and what was reported since the
// last call: nothing, "" for a file that is in force now, or a part of an
// error.
func (w *watched) expect(attempts int, told ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	policy, err := w.transport.PolicyFor("api.example.com:443")
	require.NoError(w.t, err)
	assert.Equal(w.t, attempts, policy.MaxAttempts)
	require.Len(w.t, w.told, len(told), "%v", w.told)
	for i, want := range told {
		if want == "" {
			assert.NoError(w.t, w.told[i])
		} else {
			assert.ErrorContains(w.t, w.told[i], want)
		}
	}
	w.told = nil
}

func (w *watched) hangUp() {
	w.hangups <- syscall.SIGHUP
	synctest.Wait()
}

func (w *watched) wait() {
	time.Sleep(6 * time.Second)
	synctest.Wait()
}

func (w *watched) write(content string) {
	w.t.Helper()
	require.NoError(w.t, os.WriteFile(w.path, []byte(content), 0o600))
}

func TestReload_Signal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(path, []byte(`{"max_attempts": 3}`), 0o600))
	watching(t, path, func(w *watched) {
		w.expect(3, "")
		w.write(`{"max_attempts": 5}`)
		w.hangUp()
		w.expect(5, "")
		w.write(`{"max_attempts": "many"}`)
		w.hangUp()
		w.expect(5, "max_attempts")
		w.hangUp()
		w.expect(5, "max_attempts") // an explicit reload reports the error again
		w.wait()
		w.expect(5)
		w.write(`{"attempt_timeout": "1s", "deadline": "1500ms"}`)
		w.hangUp()
		w.expect(4, "") // advice refuses nothing
		require.NoError(t, os.Remove(path))
		w.hangUp()
		w.expect(4, "no such file")
		w.write(`{"max_attempts": 2}`)
		w.hangUp()
		w.expect(2, "")
	})
}

func TestReload_ConfigMap(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, project(dir, "..version_1", `{"max_attempts": 3}`))
	watching(t, filepath.Join(dir, "policies.json"), func(w *watched) {
		w.expect(3, "")
		w.wait()
		w.expect(3)
		require.NoError(t, project(dir, "..version_2", `{"max_attempts": 5}`))
		w.wait()
		w.expect(5, "")
		require.NoError(t, project(dir, "..version_3", `{"max_attempts": 5, "hosts": {"api.example.com": {"max_attempt": 1}}}`))
		w.wait()
		w.expect(5, "max_attempt")
		for range 10 {
			w.wait()
		}
		w.expect(5) // reported once
		require.NoError(t, project(dir, "..version_4", `{"max_attempts": 2}`))
		w.wait()
		w.expect(2, "")
		require.NoError(t, os.Remove(filepath.Join(dir, "..data")))
		w.wait()
		w.wait()
		w.expect(2, "no such file")
		require.NoError(t, os.Symlink("..version_4", filepath.Join(dir, "..data")))
		w.wait()
		w.expect(2, "") // the file is back, with the content that was in force
	})
}
