// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// notInTime is a timeout error that doesn't come from a context.
type notInTime struct{}

func (notInTime) Error() string { return "i/o timeout" }
func (notInTime) Timeout() bool { return true }

//retrip:promise P3 P17
func TestError(t *testing.T) {
	a, b := errors.New("a"), errors.New("b")
	for _, tt := range []struct {
		name    string
		steps   []play.Step
		text    string
		is      []error
		timeout bool
	}{
		{"two errors", []play.Step{play.Err(a), play.Err(b)}, "retrip: gave up after 2 attempts (max_attempts): b; before that: a", []error{a, b}, false},
		{"the same twice", []play.Step{play.Err(a), play.Err(a)}, "retrip: gave up after 2 attempts (max_attempts): a", []error{a}, false},
		{"a timeout last", []play.Step{play.Err(a), play.Err(notInTime{})}, "retrip: gave up after 2 attempts (max_attempts): i/o timeout; before that: a", []error{a, notInTime{}}, true},
		{"a timeout before", []play.Step{play.Err(notInTime{}), play.Err(a)}, "retrip: gave up after 2 attempts (max_attempts): a; before that: i/o timeout", []error{a, notInTime{}}, false},
		{"a context's timeout", []play.Step{play.Err(a), play.Err(fmt.Errorf("x: %w", context.DeadlineExceeded))}, "retrip: gave up after 2 attempts (max_attempts): x: context deadline exceeded; before that: a", []error{a, context.DeadlineExceeded}, true},
		{"after a response", []play.Step{play.Reply(503), play.Err(b)}, "retrip: gave up after 2 attempts (max_attempts), last status 503: b", []error{b}, false},
	} {
		play.Bubble(t, tt.name, func(t *testing.T) {
			p := play.With(func(p *retrip.Policy) { p.MaxAttempts = 2 })
			_, err := (&retrip.Transport{Base: play.Base(tt.steps...), Policy: p}).RoundTrip(play.Request(t, "GET", nil))
			e := play.AsError(t, err)
			assert.Same(t, e, err)
			assert.Equal(t, tt.text, err.Error())
			for _, want := range tt.is {
				assert.ErrorIs(t, err, want)
			}
			assert.Equal(t, tt.timeout, e.Timeout())
			assert.Equal(t, tt.timeout, (&url.Error{Op: "Get", URL: "x", Err: err}).Timeout())
			assert.Equal(t, 2, e.Attempts)
			assert.Equal(t, retrip.ReasonMaxAttempts, e.Reason)
		})
	}
}

// Of a request that has made very many attempts, an Error keeps the first and the last errors.
//
//retrip:promise P17
func TestError_Many(t *testing.T) {
	for attempts, omitted := range map[int]string{16: "", 17: "1 more", 1000: "984 more"} {
		play.Bubble(t, fmt.Sprint(attempts), func(t *testing.T) {
			errs := make([]error, attempts)
			base := play.Base()
			for i := range errs {
				errs[i] = fmt.Errorf("error %d", i)
				base.Steps = append(base.Steps, play.Err(errs[i]))
			}
			p := retrip.Policy{MaxAttempts: attempts, Budget: retrip.Off, Backoff: retrip.Backoff{Base: retrip.Off}}
			_, err := (&retrip.Transport{Base: base, Policy: p}).RoundTrip(play.Request(t, "GET", nil))
			e := play.AsError(t, err)
			assert.Equal(t, attempts, e.Attempts)
			want := slices.Clone(errs)
			slices.Reverse(want)
			got := e.Err.(interface{ Unwrap() []error }).Unwrap()
			if omitted != "" {
				require.EqualError(t, got[8], omitted)
				assert.Contains(t, err.Error(), "; before that: "+omitted+"; before that: error 7; ")
				got = slices.Delete(got, 8, 9)
				want = slices.Delete(want, 8, attempts-8)
			}
			assert.Equal(t, want, got)
		})
	}
}

// A program may build an Error for its own tests.
func TestError_Literal(t *testing.T) {
	for _, tt := range []struct {
		err     *retrip.Error
		text    string
		timeout bool
	}{
		{&retrip.Error{}, "retrip: not sent", false},
		{&retrip.Error{Reason: retrip.ReasonBreakerOpen}, "retrip: not sent (breaker_open)", false},
		{&retrip.Error{Attempts: 1, Reason: retrip.ReasonCanceled, Err: context.Canceled}, "retrip: gave up after 1 attempt (canceled): context canceled", false},
		{&retrip.Error{Attempts: 3, Reason: retrip.ReasonDeadline, Err: context.DeadlineExceeded}, "retrip: gave up after 3 attempts (deadline): context deadline exceeded", true},
		{&retrip.Error{Attempts: 1, StatusCode: 503, Reason: retrip.ReasonHostPaused}, "retrip: gave up after 1 attempt (host_paused), last status 503", false},
	} {
		assert.Equal(t, tt.text, tt.err.Error())
		assert.Equal(t, tt.timeout, tt.err.Timeout())
	}
}

// The text of an Error contains no userinfo and no query of a URL, however deep
// and however malformed the URL.
func TestError_Redacted(t *testing.T) {
	inner := errors.New("reset")
	plain := fmt.Errorf("got a 502 from https://example.com/a@b: see http://go.dev/issue/1, or //x@y?z: %w", inner)
	assert.Equal(t, "retrip: gave up after 1 attempt: "+plain.Error(), (&retrip.Error{Attempts: 1, Err: plain}).Error())
	for _, err := range []error{
		&url.Error{Op: "Get", URL: secretURL, Err: inner},
		fmt.Errorf("wrapped: %w", &url.Error{Op: "Get", URL: secretURL, Err: inner}),
		errors.Join(&url.Error{Op: "Get", URL: "http://a/", Err: inner}, &url.Error{Op: "Get", URL: secretURL, Err: inner}),
		&url.Error{Op: "Get", URL: "http://outer/?token=s3cret", Err: &url.Error{Op: "Get", URL: secretURL, Err: inner}},
		&url.Error{Op: "Get", URL: "http://user:hunter2@exa mple.com/?token=s3cret", Err: inner},
		&url.Error{Op: "Get", URL: "http://user:hunter2@example.com/?s3cret=\"\x01", Err: inner},
		errors.Join(&url.Error{Op: "Get", URL: "http://a/?", Err: inner}, &url.Error{Op: "Get", URL: "http://a/?s3cret", Err: inner}),
		&url.Error{Op: "Get", URL: "mailto:hunter2?s3cret", Err: inner},
		fmt.Errorf("calling %s: %w", secretURL, inner),
		fmt.Errorf("(%s), then %q: %w", "https://user:hunter2@example.com:8443?s3cret=http://b/s3cret", secretURL, inner),
		fmt.Errorf("'%s', https://a'hunter2@example.com/t(k='x')?k='x'&s3cret: %w", secretURL, inner),
		fmt.Errorf("store: dial redis://:hunter2@cache:6379/0 failed: %w", inner),
	} {
		play.Bubble(t, fmt.Sprint(err), func(t *testing.T) {
			_, got := (&retrip.Transport{Base: play.Base(play.Err(err)), Policy: play.Steady}).RoundTrip(play.Request(t, "GET", nil))
			require.ErrorIs(t, got, inner)
			require.ErrorAs(t, got, new(*retrip.Error))
			for _, secret := range []string{"hunter2", "s3cret", "user:"} {
				assert.NotContains(t, got.Error(), secret)
			}
			assert.Contains(t, got.Error(), ": reset")
			assert.NotContains(t, got.Error(), "\n")
		})
	}
}
