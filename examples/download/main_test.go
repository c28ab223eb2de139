// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDownload(t *testing.T) {
	s, sum := startServer(20<<20, 3<<20)
	defer s.Close()
	var out strings.Builder
	r, err := download(t.Context(), s.URL, &out)
	require.NoError(t, err)
	assert.Equal(t, sum, r.sum)
	assert.EqualValues(t, 20<<20, r.size)
	assert.Equal(t, 6, r.continued)
	assert.Equal(t, 6, strings.Count(out.String(), "continued\n"))
	_, err = download(t.Context(), "http://127.0.0.1:1/", new(strings.Builder))
	assert.Error(t, err)
}
