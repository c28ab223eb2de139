// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"maps"
	"net/http"
	"strings"
)

// WithHeader returns a copy of h in which the field name, in canonical form, has the
// one value. net/http sends every spelling of a name in a map, so WithHeader removes
// the others.
func WithHeader(h http.Header, name, value string) http.Header {
	h = maps.Clone(h)
	if h == nil {
		h = http.Header{}
	}
	for other := range h {
		if strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = []string{value}
	return h
}

// HasHeader reports whether h has a value of the field name, in any spelling.
func HasHeader(h http.Header, name string) bool {
	for other, values := range h {
		if len(values) > 0 && strings.EqualFold(other, name) {
			return true
		}
	}
	return false
}
