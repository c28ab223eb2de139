// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// screen is the output of the demo so far.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// An interrupt ends the demo, Prometheus included, and removes its files.
func TestDemo_EndsCleanly(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		t.Skip("there is no prometheus here")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out screen
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &out, "../alerts.yml", true) }()
	alerts := regexp.MustCompile(`http://(127\.0\.0\.1:\d+)/(classic/)?alerts\n`)
	require.Eventually(t, func() bool { return alerts.MatchString(out.String()) }, 60*time.Second, 50*time.Millisecond)
	address := alerts.FindStringSubmatch(out.String())
	cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(60 * time.Second):
		require.FailNow(t, "it goes on")
	}
	_, err := http.Get("http://" + address[1] + "/-/ready")
	assert.Error(t, err, "Prometheus is still there")
	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
