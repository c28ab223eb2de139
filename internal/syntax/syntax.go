// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package syntax has the small parts of the grammar of HTTP.
package syntax

import (
	"net/http"
	"strings"
)

// Method returns the method of req. As in net/http, an empty method means GET.
func Method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// IsToken reports whether s is a token (RFC 9110 §5.6.2).
func IsToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && !('0' <= c && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}

// IsDigits reports whether s consists of one or more digits.
func IsDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// HasControl reports whether s contains a control character.
func HasControl(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return true
		}
	}
	return false
}
