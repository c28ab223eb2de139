// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/syntax"
)

// Hopeless reports whether no further attempt can fix err: the request is
// malformed, the server is not who it claims to be, refuses the handshake, speaks
// or demands another protocol, or the host name doesn't exist.
func Hopeless(req *http.Request, err error, read Reader) bool {
	return incurable(err, read) || Malformed(req, err)
}

// incurable reports whether err, or an error that err wraps, shows by itself
// that a retry can't help. For the error of another Transport, that Transport
// decides.
func incurable(err error, read Reader) bool {
	for err != nil {
		switch err {
		case ErrNothing, http.ErrSchemeMismatch, http.ErrNotSupported, http.ErrSkipAltProtocol:
			return true
		}
		if inner, ok := read(err); ok {
			return inner.Hopeless
		}
		switch e := err.(type) {
		case *tls.CertificateVerificationError, *net.AddrError:
			return true
		case *net.DNSError:
			return e.IsNotFound && !e.IsTemporary && !e.IsTimeout
		case tls.RecordHeaderError:
			return e.Conn != nil // the server's first bytes weren't those of TLS
		case *net.OpError:
			if e.Op == "remote error" && isVerdict(e.Err) {
				return true
			}
			err = e.Err
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return incurable(err, read) })
		default:
			return refusedForm(err) || refusedForm(streamCause(err)) || ofHTTP2(err, http11Required)
		}
	}
	return false
}

// verdicts are the alerts of TLS (RFC 8446 §6) by which a server refuses the client's
// certificate or what it offers. It would refuse them again.
var verdicts = []uint64{
	40, 70, 71, 86, 120, // no cipher, version or protocol in common
	42, 43, 44, 45, 46, 48, 49, 116, // the certificate, or none
	112, // the name of the server
}

// isVerdict reports whether alert, whose type crypto/tls doesn't export, is one of
// [verdicts].
func isVerdict(alert error) bool {
	v := reflect.ValueOf(alert)
	return v.Kind() == reflect.Uint8 && slices.Contains(verdicts, v.Uint())
}

// streamCause returns why net/http has ended the HTTP/2 stream of err, or nil.
func streamCause(err error) error {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Struct || !strings.HasSuffix(v.Type().Name(), "StreamError") || !v.FieldByName("Cause").IsValid() {
		return nil
	}
	cause, _ := v.FieldByName("Cause").Interface().(error)
	return cause
}

// refusedForm reports whether err is an untyped net/http error which says that
// HTTP/2 can't carry the request, that the proxy requires authentication, or that the
// client can't take the response.
func refusedForm(err error) bool {
	text := plainText(err)
	return text == http.StatusText(http.StatusProxyAuthRequired) ||
		slices.ContainsFunc(formTexts, func(begin string) bool { return strings.HasPrefix(text, begin) })
}

var formTexts = []string{
	"invalid request :path ", "invalid Upgrade request header: ", "invalid Transfer-Encoding request header: ",
	"invalid Connection request header: ", "invalid Host header",
	"request header list larger than peer's advertised limit",
	"net/http: server response headers exceeded ", "http2: response header list larger than advertised limit",
	`malformed HTTP response "\x15\x03`, // an alert of TLS
}

// Malformed reports whether err is that of net/http for a request that it refuses to
// send. Such errors have no type, so Malformed examines the request. It runs only after a
// failure, so a valid request doesn't pay for it.
func Malformed(req *http.Request, err error) bool {
	if isA[*net.OpError](err) {
		// A request that reached the network was not malformed.
		return false
	}
	u := req.URL
	if u == nil || req.Header == nil {
		return true
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		// The base may know the scheme: see http.Transport.RegisterProtocol.
		return strings.HasSuffix(err.Error(), fmt.Sprintf("unsupported protocol scheme %q", u.Scheme))
	}
	if u.Host == "" || req.Body == nil && req.ContentLength > 0 || syntax.HasControl(u.RequestURI()) {
		return true
	}
	if req.Body == nil && req.ContentLength < 0 && strings.HasSuffix(err.Error(), "with nil Body") {
		// HTTP/2 accepts such a request.
		return true
	}
	return !syntax.IsToken(syntax.Method(req)) || !validHeader(req.Header) || !validHeader(req.Trailer) || !validTrailer(req.Trailer)
}

func validHeader(h http.Header) bool {
	for name, values := range h {
		if !syntax.IsToken(name) {
			return false
		}
		for _, value := range values {
			if syntax.HasControl(strings.ReplaceAll(value, "\t", "")) {
				return false
			}
		}
	}
	return true
}

// validTrailer reports whether h has none of the fields that net/http refuses
// in a trailer.
func validTrailer(h http.Header) bool {
	for name := range h {
		switch http.CanonicalHeaderKey(name) {
		case "Transfer-Encoding", "Trailer", "Content-Length":
			return false
		}
	}
	return true
}

// RefusedByCaller reports whether the error of a TLS handshake over a
// connection of package net comes from the caller's own code, such as
// tls.Config.VerifyConnection. crypto/tls returns such an error unchanged. Its
// own errors and those of the connection have other types.
func RefusedByCaller(err error) bool {
	if is(err, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, context.Canceled) || Timeout(err) ||
		isA[net.Error](err) || isA[tls.AlertError](err) || isA[tls.RecordHeaderError](err) || isA[*tls.ECHRejectionError](err) {
		return false
	}
	return !strings.HasPrefix(err.Error(), "tls: ")
}
