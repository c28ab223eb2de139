// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/retrip/retrip/internal/syntax"
)

// Hopeless reports whether no further attempt can fix err: the request is malformed, the
// host name doesn't exist, a proxy, the server or the client itself refuses the connection,
// or the port speaks or demands another protocol.
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
		case tunnelRefused, *tls.CertificateVerificationError, *tls.ECHRejectionError, *net.AddrError, net.UnknownNetworkError,
			x509.UnknownAuthorityError, x509.HostnameError, x509.CertificateInvalidError:
			return true
		case *net.DNSError:
			return e.IsNotFound && !e.IsTemporary && !e.IsTimeout
		case tls.RecordHeaderError:
			return e.Conn != nil // the server's first bytes weren't those of TLS
		case *net.OpError:
			if refusedOp(e) {
				return true
			}
			err = e.Err
		case *url.Error:
			if e.Op == "parse" { // by net/url: the address of a proxy, or what Base asks besides
				return true
			}
			err = e.Err
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			return slices.ContainsFunc(e.Unwrap(), func(err error) bool { return incurable(err, read) })
		default:
			return reflect.TypeOf(err).String() == unknownEncoding || refusedByText(err) || refusedByText(streamCause(err)) || ofHTTP2(err, http11Required) || ofHTTP2(err, inadequateSecurity)
		}
	}
	return false
}

// unknownEncoding is the type of net/http's error for a Transfer-Encoding that it doesn't know.
const unknownEncoding = "*http.unsupportedTEError"

// verdicts are the alerts of TLS (RFC 8446 §6) by which a server refuses the client's
// certificate or what it offers. It would refuse them again.
var verdicts = []uint64{
	40, 70, 71, 86, 120, // no cipher, version or protocol in common
	42, 43, 44, 45, 46, 48, 49, 116, // the certificate, or none
	112, // the name of the server
}

// noRenegotiation is the alert by which the client refuses to renegotiate.
const noRenegotiation = 100

// isAlert reports whether err, whose type crypto/tls doesn't export, is one of alerts.
func isAlert(err error, alerts ...uint64) bool {
	v := reflect.ValueOf(err)
	return v.Kind() == reflect.Uint8 && slices.Contains(alerts, v.Uint())
}

// refusedOp reports whether op is a refusal by a server, the client, a SOCKS proxy or the
// system, and not a failure on the way.
func refusedOp(op *net.OpError) bool {
	switch {
	case op.Op == "remote error":
		return isAlert(op.Err, verdicts...)
	case op.Op == "local error":
		return isAlert(op.Err, noRenegotiation)
	case op.Op == "socks connect":
		text := plainText(op.Err)
		reply, replied := strings.CutPrefix(text, "unknown error ")
		return replied && slices.Contains(socksRefusals, reply) || !replied && text != "" && !is(op.Err, io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe)
	case op.Op == "dial" && op.Net == "unix":
		return is(op.Err, fs.ErrPermission, syscall.EINVAL) // EINVAL: the name is too long
	}
	return false
}

// socksRefusals are the replies of a SOCKS proxy (RFC 1928 §6) that don't tell of a failure
// behind it.
var socksRefusals = []string{"connection not allowed by ruleset", "command not supported", "address type not supported"}

// streamCause returns why net/http has ended the HTTP/2 stream of err, or nil.
func streamCause(err error) error {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Struct || !strings.HasSuffix(v.Type().Name(), "StreamError") || !v.FieldByName("Cause").IsValid() {
		return nil
	}
	cause, _ := v.FieldByName("Cause").Interface().(error)
	return cause
}

// refusedByText reports whether err has only a text, which tells a refusal.
func refusedByText(err error) bool {
	text := plainText(err)
	return beginsWith(text, refusals) || text != "" && refusedCONNECT(text) || beginsHTTP2(text)
}

// beginsHTTP2 reports whether text quotes the SETTINGS with which a server begins HTTP/2 (RFC
// 9113 §3.4). Other zeros may be the rest of a response over the same connection.
func beginsHTTP2(text string) bool {
	quoted, _ := strings.CutPrefix(text, notHTTP+"response ")
	line, _ := strconv.Unquote(quoted)
	return strings.HasPrefix(line, "\x00\x00") && len(line) >= 9 && line[3:9] == "\x04\x00\x00\x00\x00\x00"
}

// refusals are the beginnings of untyped errors that say that HTTP/2 can't carry the request,
// that the client can't take the response, that it refuses the server's handshake, or that the
// environment names no proxy.
var refusals = []string{
	"invalid request :path ", "invalid Upgrade request header: ", "invalid Transfer-Encoding request header: ",
	"invalid Connection request header: ", "invalid Host header",
	"request header list larger than peer's advertised limit",
	"net/http: server response headers exceeded ", "http2: response header list larger than advertised limit", "header list too large",
	"tls: ", "invalid proxy address ",
	// Other protocols, as a plain attempt can tell them: a response over HTTP/1 to HTTP/2, and
	// to HTTP/1 an alert of TLS or a greeting of SSH. For HTTP/2, see beginsHTTP2.
	"http2: frame too large", notHTTP + `response "\x15\x03`, notHTTP + `response "SSH-`,
	notHTTP + `status code "Debian-`, notHTTP + `status code "Ubuntu-`,
}

const notHTTP = "malformed HTTP "

// NotHTTP reports whether err says that something other than a response has arrived, or the
// beginning of one. If it is the first to arrive over a connection, the port speaks another
// protocol. Later, it may be the rest of another response.
func NotHTTP(err error) bool {
	return anyOf(err, func(err error) bool {
		what, begins := strings.CutPrefix(plainText(err), notHTTP)
		what, value, ok := strings.Cut(what, ` "`)
		if !begins || !ok {
			return false
		}
		value = strings.TrimSuffix(value, `"`)
		switch what {
		case "response":
			return !strings.HasPrefix("HTTP/", value[:min(len(value), len("HTTP/"))])
		case "status code":
			return strings.Trim(value, "0123456789") != ""
		}
		return true
	})
}

// refusesTunnel reports whether a proxy that answers CONNECT with the status refuses the tunnel,
// and asks for no other attempt.
func refusesTunnel(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusMisdirectedRequest, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status > http.StatusOK && status < http.StatusInternalServerError
}

// refusedCONNECT reports whether text, that of net/http's error after a CONNECT, is the phrase
// of a status by which a proxy refuses the tunnel. The error has no other trace of the status.
func refusedCONNECT(text string) bool {
	text, _, _ = strings.Cut(text, " (") // some say more
	for status := http.StatusOK; status < http.StatusInternalServerError; status++ {
		if refusesTunnel(status) && strings.EqualFold(text, http.StatusText(status)) {
			return true
		}
	}
	return text == "Not Allowed" // nginx, for 405
}

// tunnelRefused is net/http's error after a CONNECT that a proxy has refused, with a type.
type tunnelRefused string

func (e tunnelRefused) Error() string { return string(e) }

// OnProxyConnect is for http.Transport.OnProxyConnectResponse: it tells a refusal by its status,
// whatever the phrase.
func OnProxyConnect(_ context.Context, _ *url.URL, _ *http.Request, resp *http.Response) error {
	if !refusesTunnel(resp.StatusCode) {
		return nil
	}
	_, text, _ := strings.Cut(resp.Status, " ")
	return tunnelRefused(cmp.Or(text, "unknown status code"))
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
