// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package exchange

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/attempt"
	"github.com/retrip/retrip/internal/body"
	"github.com/retrip/retrip/internal/fault"
	"github.com/retrip/retrip/internal/replay"
	"github.com/retrip/retrip/internal/tell"
	"github.com/retrip/retrip/internal/testenv"
)

// Nothing of an earlier attempt can be taken for that of the next one: its sends, an
// error beside a response, a body that broke, a status that belongs to a response
// already discarded. Whatever is added to last is part of this test at once.
func TestExchange_AttemptsShareNothing(t *testing.T) {
	earlier := last{
		attempt: attempt.Begin(&http.Request{}, 0), began: 1, decided: 2, resp: &http.Response{}, err: errors.New("earlier"),
		race: &race{}, broken: &body.Prefixed{}, inHand: true, whole: true, awaits: true,
		kept: tell.Kept{Status: 503, Sends: 3}, lost: http.Header{},
	}
	fields := reflect.ValueOf(earlier)
	for i := range fields.NumField() {
		require.False(t, fields.Field(i).IsZero(), "%s is new: set it above", fields.Type().Field(i).Name)
	}
	answer := &http.Response{StatusCode: 200, Body: http.NoBody}
	env := &Env{Tables: &Tables{}, Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return answer, nil }), Desk: tell.Desk{Epoch: time.Now()}}
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	require.NoError(t, err)
	var x exchange
	x.init(env, &Config{}, req, replay.None, nil)
	x.call.Attempts, x.last = 1, earlier
	x.send()
	assert.Equal(t, last{resp: answer, inHand: true}, x.last)

	x.last = earlier
	x.last.broken = nil // its response is discarded at once
	x.beginRetry()
	assert.Equal(t, last{attempt: earlier.attempt, resp: earlier.resp, err: earlier.err, inHand: true, kept: earlier.kept}, x.last)
	x.discard(0)
	assert.Equal(t, last{err: earlier.err, kept: tell.Kept{Sends: 3}}, x.last, "a wait keeps no attempt")
}

// A deadline makes the duration of each attempt matter, from its own beginning.
func TestExchange_AttemptsBeginAnew(t *testing.T) {
	env := &Env{Tables: &Tables{}, Base: testenv.RoundTripper(func(*http.Request) (*http.Response, error) { return nil, errors.New("fails") }), Desk: tell.Desk{Epoch: time.Now()}, Inner: func(error) (fault.Inner, bool) { return fault.Inner{}, false }}
	req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	require.NoError(t, err)
	var x exchange
	x.init(env, &Config{Deadline: time.Hour}, req, replay.None, nil)
	x.call.Attempts++
	x.send()
	first := x.last.began
	assert.Equal(t, env.instant(x.started), first, "the first reading of the clock")
	for env.Now() == first {
	}
	x.call.Attempts++
	x.send()
	assert.Greater(t, x.last.began, first)
}
