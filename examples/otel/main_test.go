// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRun(t *testing.T) {
	var out strings.Builder
	require.NoError(t, run(&out))
	assert.Equal(t, 3, strings.Count(out.String(), "span HTTP GET"), out.String())
	assert.Equal(t, 1, strings.Count(out.String(), "span GET with retries"))
	assert.Equal(t, 2, strings.Count(out.String(), "event retry: retrip.reason=server_error"))
	assert.Contains(t, out.String(), "http.request.resend_count=2")
	assert.Regexp(t, `metric retrip.request.duration +1 times`, out.String())
	assert.Regexp(t, `metric retrip.retry.delay +2 times`, out.String())
}
