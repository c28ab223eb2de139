// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKeyOf(t *testing.T) {
	for in, want := range map[string]string{
		"https://Example.COM/x":      "example.com:443",
		"https://example.com:443":    "example.com:443",
		"http://example.com":         "example.com:80",
		"http://example.com:8080":    "example.com:8080",
		"https://[2001:DB8::1]":      "[2001:db8::1]:443",
		"https://[2001:db8::1]:8443": "[2001:db8::1]:8443",
		"ftp://example.com":          "example.com:",
	} {
		u, err := url.Parse(in)
		require.NoError(t, err)
		assert.Equal(t, want, keyOf(u).String(), in)
	}
	assert.Equal(t, hostKey{}, keyOf(nil))
}
