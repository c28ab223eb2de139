// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
)

// method returns the method of req; net/http takes none for GET.
func method(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

// idempotent reports whether sending req twice is the same as sending it once:
// by its method (RFC 9110 §9.2.2), by a key, or because the policy says so.
func (r *Rules) idempotent(req *http.Request) bool {
	if r.policy.Idempotent != nil {
		return r.policy.Idempotent(req)
	}
	switch method(req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete:
		return true
	}
	return hasKey(req.Header) || slices.Contains(r.policy.IdempotentMethods, method(req))
}

// hasKey reports whether h marks a request as idempotent, by the rule of
// net/http: the header is there, were it with no value at all.
func hasKey(h http.Header) bool {
	_, ok := h["Idempotency-Key"]
	if !ok {
		_, ok = h["X-Idempotency-Key"]
	}
	return ok
}

// newKey returns a fresh value for the Idempotency-Key header: an sf-string
// (draft-ietf-httpapi-idempotency-key-header) of at least 128 random bits.
func newKey() string { return `"` + rand.Text() + `"` }

// neverProcessed reports whether err proves that no server has processed the
// request: the connection, or the name, was not to be had, or the server said
// so of the stream (RFC 9113 §8.7). What merely makes it likely is no proof.
func neverProcessed(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect") {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return true
	}
	const refusedStream = 0x7
	code, ok := streamErrorCode(err)
	return ok && code == refusedStream
}

// streamErrorCode returns the error code of an HTTP/2 RST_STREAM in err.
// net/http's type for it is unexported and that of x/net/http2 isn't ours to
// depend on, but they look the same.
func streamErrorCode(err error) (uint32, bool) {
	for err != nil {
		if v := reflect.ValueOf(err); v.Kind() == reflect.Struct && strings.HasSuffix(v.Type().Name(), "StreamError") {
			id, code := v.FieldByName("StreamID"), v.FieldByName("Code")
			if id.Kind() == reflect.Uint32 && code.Kind() == reflect.Uint32 {
				return uint32(code.Uint()), true
			}
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				if code, ok := streamErrorCode(err); ok {
					return code, true
				}
			}
			return 0, false
		}
		err = errors.Unwrap(err)
	}
	return 0, false
}

// hopeless reports whether no further attempt can heal err: the request is
// malformed, the server is not who it should be, or the name doesn't exist.
func hopeless(req *http.Request, err error) bool {
	if errors.Is(err, errNothing) || errors.Is(err, http.ErrSchemeMismatch) || errors.Is(err, http.ErrNotSupported) {
		return true
	}
	var certificate *tls.CertificateVerificationError
	var address *net.AddrError
	if errors.As(err, &certificate) || errors.As(err, &address) {
		return true
	}
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return dns.IsNotFound && !dns.IsTemporary && !dns.IsTimeout
	}
	// What got as far as the network wasn't refused for its form. The base may
	// know schemes that net/http doesn't.
	var op *net.OpError
	return !errors.As(err, &op) && malformed(req)
}

// malformed reports whether net/http refuses to send req. Its errors for that
// have no type of their own, so the request is looked at; only once it has
// failed, which costs a healthy one nothing.
func malformed(req *http.Request) bool {
	u := req.URL
	if u == nil || req.Header == nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return true
	}
	if req.Body == nil && req.ContentLength > 0 {
		return true
	}
	return !isToken(method(req)) || !validHeader(req.Header) || !validHeader(req.Trailer)
}

func validHeader(h http.Header) bool {
	for name, values := range h {
		if !isToken(name) {
			return false
		}
		for _, value := range values {
			for i := range len(value) {
				if c := value[i]; c < ' ' && c != '\t' || c == 0x7f {
					return false
				}
			}
		}
	}
	return true
}

// isToken reports whether s is a token (RFC 9110 §5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && !('0' <= c && c <= '9') && strings.IndexByte("!#$%&'*+-.^_`|~", c) < 0 {
			return false
		}
	}
	return s != ""
}
