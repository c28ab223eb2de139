// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

var credentials = aws.Credentials{AccessKeyID: "AKID", SecretAccessKey: "SECRET"}

// sigV4 signs requests like AWS's own clients, including every header that the
// request has at that point.
type sigV4 struct{ base http.RoundTripper }

func (s sigV4) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if err := sign(req, time.Now()); err != nil {
		return nil, err
	}
	return s.base.RoundTrip(req)
}

const unsigned = "UNSIGNED-PAYLOAD"

func sign(req *http.Request, at time.Time) error {
	req.Header.Set("X-Amz-Content-Sha256", unsigned)
	return v4.NewSigner().SignHTTP(context.Background(), credentials, req, unsigned, "service", "eu-west-1", at)
}

// checkSignature verifies a request as AWS servers do: it signs the received
// request with the headers listed in its signature, and compares.
func checkSignature(r *http.Request) error {
	given := r.Header.Get("Authorization")
	_, rest, _ := strings.Cut(given, "SignedHeaders=")
	names, _, ok := strings.Cut(rest, ",")
	if !ok {
		return fmt.Errorf("no signature: %q", given)
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return err
	}
	again := &http.Request{Method: r.Method, URL: &url.URL{Scheme: "http", Host: r.Host, Path: r.URL.Path}, Host: r.Host, Header: http.Header{}, ContentLength: r.ContentLength}
	for name := range strings.SplitSeq(names, ";") {
		switch name = http.CanonicalHeaderKey(name); name {
		case "Host", "Content-Length", "X-Amz-Date":
		default:
			values := r.Header.Values(name)
			if len(values) == 0 {
				return fmt.Errorf("%s is signed and was not sent", name)
			}
			again.Header[name] = slices.Clone(values)
		}
	}
	if err := sign(again, at); err != nil {
		return err
	}
	if want := again.Header.Get("Authorization"); want != given {
		return fmt.Errorf("the signature is %q, and must be %q", given, want)
	}
	return nil
}

// A Base that signs every attempt signs exactly what is sent, so that a strict
// server accepts all of them.
//
//retrip:promise P4
func TestSigningBase(t *testing.T) {
	for _, tt := range []struct {
		method  string
		body    io.Reader
		timeout time.Duration
		fault   func(http.ResponseWriter)
	}{
		{http.MethodGet, http.NoBody, 0, func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }},
		{http.MethodDelete, http.NoBody, time.Minute, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }},
		{http.MethodPut, strings.NewReader("payload"), time.Minute, func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) }},
		{http.MethodPut, stream("payload"), 0, func(http.ResponseWriter) { panic(http.ErrAbortHandler) }},
	} {
		var arrived atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if !assert.NoError(t, checkSignature(r)) {
				w.WriteHeader(http.StatusForbidden)
			} else if arrived.Add(1) <= 2 {
				tt.fault(w)
			}
		}))
		base := &http.Transport{}
		transport := &retrip.Transport{Base: sigV4{base}, Policy: retrip.Policy{
			AttemptTimeout: tt.timeout, Backoff: retrip.Backoff{Base: retrip.Off}, RetryHeader: "Retry-Attempt",
		}}
		resp, _ := play.Do(t, transport, play.MustRequest(t, tt.method, server.URL+"/path", tt.body))
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.EqualValues(t, 3, arrived.Load())
		base.CloseIdleConnections()
		server.Close()
	}
}
