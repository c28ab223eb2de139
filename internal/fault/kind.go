// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"slices"

	"github.com/retrip/retrip/internal/errno"
)

// Kind says in a word what kind of error an attempt ended with. It is for people who
// look: no decision reads it.
type Kind uint8

const (
	NoError Kind = iota
	KindOther
	KindTimeout
	KindNoSuchHost
	KindDNS
	KindRefused
	KindUnreachable
	KindTLS
	KindLost
	KindBody
	KindRequest
	KindCaller
	KindPanic
	kinds // the number of kinds
)

var kindWords = [kinds]string{
	KindOther: "other", KindTimeout: "timeout", KindNoSuchHost: "no_such_host", KindDNS: "dns", KindRefused: "connection_refused",
	KindUnreachable: "unreachable", KindTLS: "tls", KindLost: "connection_lost", KindBody: "request_body", KindRequest: "request", KindCaller: "refused_by_caller", KindPanic: "panic",
}

// String returns the word for k, which is empty for NoError.
func (k Kind) String() string { return kindWords[k] }

// ofKind says which errors are of a kind. The first row that fits counts.
var ofKind = []struct {
	kind Kind
	fits func(err error) bool
}{
	{KindNoSuchHost, func(err error) bool {
		name, ok := errors.AsType[*net.DNSError](err)
		return ok && name.IsNotFound
	}},
	{KindDNS, isA[*net.DNSError]},
	{KindTimeout, Timeout},
	{KindRefused, func(err error) bool { return is(err, errno.Refusals...) }},
	{KindTLS, func(err error) bool { return errors.Is(err, http.ErrSchemeMismatch) }},
	{KindTLS, isA[*tls.CertificateVerificationError]},
	{KindTLS, isA[tls.RecordHeaderError]},
	{KindTLS, isA[tls.AlertError]},
	{KindTLS, func(err error) bool { return failedTo(err, "remote error", "local error") }},
	{KindTLS, saying("tls: ", "x509: ")},
	{KindUnreachable, func(err error) bool { return failedTo(err, connecting...) }},
	{KindLost, ended},
	{KindLost, saying("http: server closed idle connection", "http2: client connection lost")},
}

// saying returns whether an error is, or wraps, one that has only a text, with one of the
// beginnings.
func saying(beginnings ...string) func(err error) bool {
	return func(err error) bool {
		return anyOf(err, func(err error) bool { return beginsWith(plainText(err), beginnings) })
	}
}

// connecting are the operations of net.OpErrors that come before a connection.
var connecting = []string{"dial", "proxyconnect", "socks connect"}

// failedTo reports whether err is a net.OpError of one of the operations.
func failedTo(err error, operations ...string) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && slices.Contains(operations, op.Op)
}

// KindOf returns the kind of err, which may be nil. It asks no other type than that of
// errors.New for a text, because the method of a careless type may panic.
func KindOf(err error) Kind {
	if err == nil {
		return NoError
	}
	for _, of := range ofKind {
		if of.fits(err) {
			return of.kind
		}
	}
	return KindOther
}
