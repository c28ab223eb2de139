// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

// again returns a GetBody for payload.
func again(payload string) func() (io.ReadCloser, error) {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(payload)), nil }
}

//retrip:promise P7
func TestReplay_Bound(t *testing.T) {
	for _, tt := range []struct {
		name     string
		size     int
		bound    int64
		attempts int
	}{
		{"empty", 0, 0, 2},
		{"default", 64 << 10, 0, 2},
		{"default and one byte", 64<<10 + 1, 0, 1},
		{"as large as the bound", 1000, 1000, 2},
		{"one byte", 1, 1, 2},
		{"one byte more", 1001, 1000, 1},
		{"nothing kept", 1, retrip.Off, 1},
		{"nothing kept of nothing", 0, retrip.Off, 2},
		{"large", 3 << 20, 4 << 20, 2},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			payload := string(play.Pattern(tt.size))
			base := play.Base(play.Reply(503), play.Reply(200))
			tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = tt.bound })}
			body := play.NewSend(payload)
			resp, _ := play.Do(t, tr, play.Request(t, "PUT", body))
			assert.Equal(t, tt.attempts, base.Attempts())
			assert.Equal(t, tt.attempts == 1, resp.StatusCode == 503)
			for i, sent := range base.Sent {
				assert.True(t, sent == payload, "attempt %d got %d bytes", i+1, len(sent))
			}
			assert.EqualValues(t, 1, body.Closed.Load())
		})
	}
}

// A file with a wrong size, one that is cut, and a closed one.
//
//retrip:promise P7
func TestReplay_OddFiles(t *testing.T) {
	send := func(t *testing.T, f *os.File) (base *play.Script, err error) {
		base = play.Base(play.Reply(503), play.Reply(200))
		_, err = (&retrip.Transport{Base: base, Policy: play.AtOnce}).RoundTrip(play.Request(t, "PUT", f))
		assert.ErrorIs(t, f.Close(), os.ErrClosed)
		return base, err
	}
	t.Run("size of zero", func(t *testing.T) {
		f, err := os.Open("/proc/version")
		if err != nil {
			t.Skip("no /proc here")
		}
		base, err := send(t, f)
		require.NoError(t, err)
		require.Len(t, base.Sent, 2)
		for _, sent := range base.Sent {
			assert.Contains(t, sent, "version")
		}
	})
	t.Run("cut in between", func(t *testing.T) {
		f := payloadFile(t, os.O_RDONLY)
		policy := play.AtOnce
		policy.Classify = func(*http.Request, *http.Response, error) retrip.Verdict {
			require.NoError(t, os.Truncate(f.Name(), 3))
			return retrip.ByRule
		}
		base := play.Base(play.Reply(503), play.Reply(200))
		_, err := (&retrip.Transport{Base: base, Policy: policy}).RoundTrip(play.Request(t, "PUT", f))
		assert.ErrorContains(t, err, "ends earlier")
		assert.Equal(t, 2, base.Attempts())
	})
	t.Run("closed already", func(t *testing.T) {
		f, err := os.Create(filepath.Join(t.TempDir(), "f"))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		base, err := send(t, f)
		assert.ErrorIs(t, err, os.ErrClosed)
		assert.Equal(t, 1, base.Attempts())
	})
}

// If Classify wants a retry after the body has failed, the kept part is still not the
// whole body.
//
//retrip:promise P7
func TestReplay_ClassifyOfABrokenBody(t *testing.T) {
	play.Bubble(t, "", func(t *testing.T) {
		broken := errors.New("broken")
		tr := &retrip.Transport{Base: play.Base(play.Reply(200)), Policy: retrip.Policy{
			Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.Retryable },
		}}
		body := &play.SendBody{Reader: io.MultiReader(strings.NewReader("x"), iotest.ErrReader(broken))}
		_, err := tr.RoundTrip(play.Request(t, "PUT", body))
		assert.Same(t, broken, err)
		assert.EqualValues(t, 1, body.Closed.Load())
	})
}

// yieldsNothing fails t unless a Read of r fails without a byte.
func yieldsNothing(t *testing.T, r io.Reader) {
	t.Helper()
	n, err := r.Read(make([]byte, 1))
	assert.Zero(t, n)
	assert.Error(t, err)
}

// A body that no attempt gets is closed too.
//
//retrip:promise P2
func TestReplay_ClosedUnsent(t *testing.T) {
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	invalid := retrip.Policy{MaxAttempts: -3}
	for name, tt := range map[string]struct {
		policy retrip.Policy
		ctx    context.Context
	}{
		"context done": {play.AtOnce, canceled}, "policy invalid": {invalid, t.Context()},
		"policy of the context invalid": {play.AtOnce, retrip.WithPolicy(t.Context(), invalid)},
	} {
		for _, getBody := range []bool{false, true} {
			body := play.NewSend("payload")
			req := play.Request(t, "PUT", body).WithContext(tt.ctx)
			if getBody {
				req.GetBody = again("payload")
			}
			assert.Error(t, testenv.Try(&retrip.Transport{Base: play.Base(play.Reply(200)), Policy: tt.policy}, req))
			assert.EqualValues(t, 1, body.Closed.Load(), "%s, GetBody %v", name, getBody)
		}
	}
}
