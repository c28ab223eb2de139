// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"errors"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/retrip/retrip/internal/syntax"
)

// proof is what an error proves about its request. An error that only makes it
// likely that no server processed the request proves nothing.
type proof uint8

const (
	noProof           proof = iota
	unprocessedByText       // unprocessed, but only the text of the error says so
	unprocessed             // the server did not process the last send
	unsent                  // nothing was sent: there was no connection to send over
)

// NeverProcessed reports whether err proves that no server has processed the
// request. sends is the known number of sends within the attempt that a server
// may have processed; err proves something about the last send only. sent says
// that the last send is known to have had a connection. Only then does the text
// of err count, because a proxy that refuses CONNECT chooses the text of the
// error.
func NeverProcessed(err error, sends int, sent bool, read Reader) bool {
	switch p := prove(err, read); p {
	case unsent:
		return sends == 0
	case unprocessed, unprocessedByText:
		return sends <= 1 && (sent || p == unprocessed)
	default:
		return false
	}
}

// Unsent reports whether err proves that nothing was sent: there was no connection to
// send over.
func Unsent(err error, read Reader) bool { return prove(err, read) == unsent }

// prove returns what err proves. An error that joins others proves only what
// each of the others proves.
func prove(err error, read Reader) proof {
	for err != nil {
		if inner, ok := read(err); ok {
			switch {
			case inner.Attempts == 0:
				return unsent
			case inner.StatusCode != 0:
				// A server answered an attempt of this inner Transport.
				return noProof
			}
		}
		switch {
		case refusedStream(err), nothingWritten(err):
			return unprocessed
		case refusedText(err) || GoneAway(err) || strings.HasPrefix(plainText(err), goAwayAtFirst):
			return unprocessedByText
		}
		switch e := err.(type) {
		case *net.OpError:
			if slices.Contains(connecting, e.Op) {
				return unsent
			}
			return noProof
		case *net.DNSError:
			return unsent
		case interface{ Unwrap() error }:
			err = e.Unwrap()
		case interface{ Unwrap() []error }:
			return proveAll(e.Unwrap(), read)
		default:
			return noProof
		}
	}
	return noProof
}

// proveAll returns the weakest proof among errs, which may describe different
// events.
func proveAll(errs []error, read Reader) proof {
	weakest := noProof
	for i, err := range errs {
		if p := prove(err, read); i == 0 || p < weakest {
			weakest = p
		}
	}
	return weakest
}

// refusedStream reports whether err itself is an HTTP/2 RST_STREAM with the
// code REFUSED_STREAM (RFC 9113 §8.7).
func refusedStream(err error) bool { return hasCode(err, "StreamError", "StreamID", "Code", 0x7) }

// nothingWritten reports whether err itself is net/http's error of an HTTP/1 connection that has
// taken no byte of the request. net/http repeats even a POST after it, if it can.
func nothingWritten(err error) bool {
	t := reflect.TypeOf(err)
	return t.PkgPath() == "net/http" && t.Name() == "nothingWrittenError"
}

// AsksForCalm reports whether err is, or wraps, an RST_STREAM or GOAWAY with the code
// ENHANCE_YOUR_CALM (RFC 9113 §7), which says what a 429 says.
func AsksForCalm(err error) bool {
	return anyOf(err, func(err error) bool { return ofHTTP2(err, enhanceYourCalm) })
}

// Codes of errors of HTTP/2 (RFC 9113 §7), and their names.
const (
	enhanceYourCalm    = 0xb
	inadequateSecurity = 0xc
	http11Required     = 0xd
)

var codeNames = map[uint64]string{enhanceYourCalm: "ENHANCE_YOUR_CALM", inadequateSecurity: "INADEQUATE_SECURITY", http11Required: "HTTP_1_1_REQUIRED"}

// goAwayAtFirst begins net/http's error for a GOAWAY that leaves the first stream of a connection
// unprocessed, if the server names an error.
const goAwayAtFirst = "http2: Transport received GOAWAY from server ErrCode:"

// ofHTTP2 reports whether err itself is an RST_STREAM or GOAWAY with the code.
func ofHTTP2(err error, code uint64) bool {
	return hasCode(err, "StreamError", "StreamID", "Code", code) || hasCode(err, "GoAwayError", "LastStreamID", "ErrCode", code) ||
		plainText(err) == goAwayAtFirst+codeNames[code]
}

// hasCode reports whether err itself is an HTTP/2 error with the code want. net/http's
// types are unexported, and this module doesn't depend on x/net/http2, but the types of
// both have the same names and fields.
func hasCode(err error, name, idField, codeField string, want uint64) bool {
	v := reflect.ValueOf(err)
	if v.Kind() != reflect.Struct || !strings.HasSuffix(v.Type().Name(), name) {
		return false
	}
	id, code := v.FieldByName(idField), v.FieldByName(codeField)
	return id.Kind() == reflect.Uint32 && code.Kind() == reflect.Uint32 && code.Uint() == want
}

// net/http returns these errors instead of resending a request that has no GetBody. They
// contain the cause only as text, so only the text tells a REFUSED_STREAM, which proves
// that the request was not processed, from a PROTOCOL_ERROR, which proves nothing.
// TestHTTP2 and TestProof_GracefulShutdown fail if net/http changes these texts.
const (
	cannotRetryBegin = "http2: Transport: cannot retry err ["
	cannotRetryEnd   = "] after Request.Body was written; define Request.GetBody to avoid this error"

	goAwayText   = cannotRetryBegin + "http2: Transport received Server's graceful shutdown GOAWAY" + cannotRetryEnd
	refusedBegin = cannotRetryBegin + "stream error: stream ID "
	refusedEnd   = "; REFUSED_STREAM; received from peer" + cannotRetryEnd

	// No pooled connection could take the request: nothing of it was sent.
	cannotRewindText = "net/http: cannot rewind body after connection loss"
)

var plainErrorType = reflect.TypeOf(errors.New(""))

// plainText returns the text of an error that has only a text, and "" for others.
func plainText(err error) string {
	if reflect.TypeOf(err) != plainErrorType {
		return ""
	}
	return err.Error()
}

// beginsWith reports whether text begins with one of beginnings.
func beginsWith(text string, beginnings []string) bool {
	return slices.ContainsFunc(beginnings, func(begin string) bool { return strings.HasPrefix(text, begin) })
}

// refusedText reports whether err says that the server refused the HTTP/2 stream of the
// request.
func refusedText(err error) bool {
	id, begins := strings.CutPrefix(plainText(err), refusedBegin)
	id, ends := strings.CutSuffix(id, refusedEnd)
	return begins && ends && syntax.IsDigits(id)
}

// GoneAway reports whether err says that a GOAWAY left the request unprocessed
// during a graceful shutdown, or that the connection could take no more
// requests. Either is the end of a connection, not a sign of trouble at the
// host.
func GoneAway(err error) bool {
	text := plainText(err)
	return text == goAwayText || text == cannotRewindText
}
