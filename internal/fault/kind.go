// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"syscall"
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

// KindOf returns the kind of err, which may be nil.
func KindOf(err error) Kind {
	if err == nil {
		return NoError
	}
	return kindOf(err)
}

// kindOf allocates, which KindOf doesn't if there is no error. It doesn't ask for the
// text of err, because the method of a careless type may panic.
func kindOf(err error) Kind {
	var (
		name        *net.DNSError
		op          *net.OpError
		certificate *tls.CertificateVerificationError
		record      tls.RecordHeaderError
		alert       tls.AlertError
	)
	switch {
	case errors.As(err, &name) && name.IsNotFound:
		return KindNoSuchHost
	case name != nil:
		return KindDNS
	case Timeout(err):
		return KindTimeout
	case errors.Is(err, syscall.ECONNREFUSED):
		return KindRefused
	case errors.Is(err, http.ErrSchemeMismatch) || errors.As(err, &certificate) || errors.As(err, &record) || errors.As(err, &alert):
		return KindTLS
	}
	if errors.As(err, &op) {
		switch op.Op {
		case "remote error", "local error":
			return KindTLS
		case "dial", "proxyconnect", "socks connect":
			return KindUnreachable
		}
	}
	if ended(err) {
		return KindLost
	}
	return KindOther
}
