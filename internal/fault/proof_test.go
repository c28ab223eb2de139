// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// The history of an inner Transport proves something to the outer one only if
// all of it is proof.
//
//retrip:promise P6
func TestProof_TransportInsideATransport(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	for _, tt := range []struct {
		name  string
		steps []play.Step
		want  int // attempts of the inner Transport, of 3 each
	}{
		{"never sent", []play.Step{play.Err(dial)}, 12},
		{"sent, then not", []play.Step{play.Err(io.EOF), play.Err(dial)}, 3},
		{"not sent, then sent", []play.Step{play.Err(dial), play.Err(io.EOF), play.Err(dial)}, 3},
		{"answered, then not sent", []play.Step{play.Reply(503), play.Err(dial)}, 3},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			play.Bubble(t, fmt.Sprint(tt.name, " timeout ", timeout), func(t *testing.T) {
				base := play.Base(tt.steps...)
				inner := &retrip.Transport{Base: base, Policy: timely(timeout)}
				inner.Policy.MaxAttempts, inner.Policy.IdempotentMethods = 3, []string{"POST"}
				outer := &retrip.Transport{Base: inner, Policy: timely(timeout)}
				_, err := outer.RoundTrip(play.Request(t, "POST", strings.NewReader("once")))
				assert.Error(t, err)
				assert.Equal(t, tt.want, base.Attempts())
			})
		}
	}
}

// A nil pointer as an error is an error, wrapped or not, and proves nothing.
//
//retrip:promise P6
func TestProof_NilPointers(t *testing.T) {
	for _, pointer := range []error{(*net.OpError)(nil), (*net.DNSError)(nil), (*url.Error)(nil), (*retrip.Error)(nil), (*ownError)(nil)} {
		for i, err := range []error{pointer, fmt.Errorf("%T: %w", pointer, pointer), errors.Join(io.EOF, pointer), &net.OpError{Op: "dial", Err: pointer}} {
			for method, want := range map[string]int{"GET": 4, "POST": 1} {
				play.Bubble(t, fmt.Sprintf("%T/%d/%s", pointer, i, method), func(t *testing.T) {
					base := play.Base(play.Err(err))
					tr := &retrip.Transport{Base: base, Policy: play.Steady, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
					_, got := tr.RoundTrip(play.Request(t, method, nil))
					assert.Equal(t, want, base.Attempts())
					if method == "POST" {
						assert.Equal(t, err, got)
					} else {
						assert.Contains(t, got.Error(), "nil")
						assert.False(t, play.AsError(t, got).Timeout())
					}
				})
			}
		}
	}
}

// GetBody and the cause of a context may also be such errors.
func TestProof_NilPointersOfTheCaller(t *testing.T) {
	pointer := error((*net.OpError)(nil))
	req := play.Request(t, "PUT", play.NewSend("x"))
	req.GetBody = func() (io.ReadCloser, error) { return nil, pointer }
	_, err := (&retrip.Transport{Base: play.Base(play.Err(io.EOF)), Policy: play.AtOnce}).RoundTrip(req)
	assert.ErrorContains(t, err, "nil *net.OpError")

	for _, timeout := range []time.Duration{0, time.Hour} {
		ctx, cancel := context.WithCancelCause(t.Context())
		base := play.Base(func(*http.Request) (*http.Response, error) {
			cancel(pointer)
			return nil, context.Canceled
		})
		_, err = (&retrip.Transport{Base: base, Policy: timely(timeout)}).RoundTrip(play.Request(t, "GET", nil).WithContext(ctx))
		assert.ErrorContains(t, err, "canceled")
	}
}

type ownError struct{ timeout bool }

func (e *ownError) Error() string { return fmt.Sprint(e.timeout) }
func (e *ownError) Timeout() bool { return e.timeout }
