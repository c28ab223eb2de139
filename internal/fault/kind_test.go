// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// secretive is an error whose text nobody may ask for.
type secretive struct{}

func (secretive) Error() string { panic("asked for its text") }

func TestKindOf(t *testing.T) {
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	for _, tt := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), "other"},
		{secretive{}, "other"},
		{dial(&net.DNSError{Err: "no such host", IsNotFound: true}), "no_such_host"},
		{dial(&net.DNSError{Err: "server misbehaving", IsTemporary: true}), "dns"},
		{dial(&net.DNSError{Err: "i/o timeout", IsTimeout: true}), "dns"},
		{context.DeadlineExceeded, "timeout"},
		{dial(syscall.ETIMEDOUT), "timeout"},
		{dial(syscall.EAGAIN), "unreachable"}, // a unix socket's backlog is full
		{dial(syscall.ECONNREFUSED), "connection_refused"},
		{dial(syscall.Errno(10061)), "connection_refused"}, // on Windows
		{dial(syscall.ENETUNREACH), "unreachable"},
		{&net.OpError{Op: "proxyconnect", Err: errors.New("x")}, "unreachable"},
		{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, "tls"},
		{tls.RecordHeaderError{Msg: "x"}, "tls"},
		{&net.OpError{Op: "remote error", Err: errors.New("handshake failure")}, "tls"},
		{http.ErrSchemeMismatch, "tls"},
		{&net.OpError{Op: "proxyconnect", Err: errors.New("tls: server selected unsupported protocol version 301")}, "tls"},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, "connection_lost"},
		{&net.OpError{Op: "read", Err: syscall.ECONNABORTED}, "connection_lost"},
		{&net.OpError{Op: "read", Err: syscall.Errno(10053)}, "connection_lost"},
		{&net.OpError{Op: "write", Err: syscall.Errno(10054)}, "connection_lost"},
		{io.EOF, "connection_lost"},
		{errors.New("http2: client connection lost"), "connection_lost"},
	} {
		assert.Equal(t, tt.want, KindOf(tt.err).String(), tt.want)
		if tt.err != nil {
			assert.Equal(t, tt.want, KindOf(errors.Join(tt.err, nil)).String())
		}
	}
	for k := NoError + 1; k < kinds; k++ {
		assert.NotEmpty(t, k.String())
	}
}
