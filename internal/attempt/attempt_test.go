// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var errLate = errors.New("too late")

// The headers arrive after the timer has fired, but before its function has
// run. The body would be cut a moment later, so the attempt has failed.
func TestAttempt_HeadersAsTimeRunsOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req, err := http.NewRequestWithContext(t.Context(), "GET", "http://example.com", nil)
		require.NoError(t, err)
		a := Begin(req, time.Second, errLate, 0, 0)
		a.timer.Stop()
		a.timer = time.AfterFunc(0, func() {})
		time.Sleep(time.Second)
		body := &closeNoter{Reader: strings.NewReader("late")}
		resp, err := a.End(&http.Response{StatusCode: 200, Body: body}, nil)
		assert.Nil(t, resp)
		assert.Equal(t, errLate, err)
		assert.True(t, body.closed)
		assert.Error(t, a.Err())
	})
}

type closeNoter struct {
	io.Reader
	closed bool
}

func (c *closeNoter) Close() error { c.closed = true; return nil }
