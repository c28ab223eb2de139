// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hostkey

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
		assert.Equal(t, want, Of(u).String(), in)
	}
	assert.Equal(t, Key{}, Of(nil))
}

// If the name is only a dot, or an address in brackets, the dot is part of it.
func TestHostPort_TrailingDot(t *testing.T) {
	for in, want := range map[string]Key{
		"api.example.com.":      {"api.example.com", "443"},
		"API.example.com.:8443": {"api.example.com", "8443"},
		"a.":                    {"a", "443"},
		"a..":                   {"a..", "443"},
		".":                     {".", "443"},
		"..":                    {"..", "443"},
		".:80":                  {".", "80"},
		"":                      {"", "443"},
		"127.0.0.1.":            {"127.0.0.1", "443"},
		"[::1]":                 {"::1", "443"},
		"[::1.]":                {"::1.", "443"},
		"[::1].":                {"[::1].", "443"},
		"[fe80::1%25a.]:80":     {"fe80::1%25a.", "80"},
	} {
		key := Of(&url.URL{Scheme: "https", Host: in})
		assert.Equal(t, want, key, in)
		assert.Equal(t, key, Of(&url.URL{Host: key.String()}), in)
	}
}
