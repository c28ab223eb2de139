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
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
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
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete} {
		for _, timeout := range []time.Duration{0, time.Minute} {
			for kind, body := range map[string]func() io.Reader{
				"no body": func() io.Reader { return http.NoBody },
				"bytes":   func() io.Reader { return strings.NewReader("payload") },
				"stream":  func() io.Reader { return stream("payload") },
			} {
				for name, fault := range map[string]func(http.ResponseWriter){
					"503":       func(w http.ResponseWriter) { w.WriteHeader(http.StatusServiceUnavailable) },
					"no answer": func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
				} {
					t.Run(fmt.Sprintf("%s/timeout %v/%s/%s", method, timeout, kind, name), func(t *testing.T) {
						var arrived atomic.Int32
						var refused atomic.Pointer[error]
						server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							_, _ = io.Copy(io.Discard, r.Body)
							if err := checkSignature(r); err != nil {
								refused.Store(&err)
								w.WriteHeader(http.StatusForbidden)
								return
							}
							if arrived.Add(1) <= 2 {
								fault(w)
							}
						}))
						defer server.Close()
						base := &http.Transport{}
						defer base.CloseIdleConnections()
						transport := &retrip.Transport{Base: sigV4{base}, Policy: retrip.Policy{
							AttemptTimeout: timeout, Backoff: retrip.Backoff{Base: retrip.Off}, RetryHeader: "Retry-Attempt",
						}}
						resp, _ := play.Do(t, transport, play.MustRequest(t, method, server.URL+"/path", body()))
						if err := refused.Load(); err != nil {
							t.Error(*err)
						}
						assert.Equal(t, http.StatusOK, resp.StatusCode)
						assert.EqualValues(t, 3, arrived.Load())
					})
				}
			}
		}
	}
}

// The server of TestSigningBase is strict: it refuses a request that was
// modified after signing, and a signature over a header that wasn't sent.
func TestSigningBase_ServerIsStrict(t *testing.T) {
	for name, change := range map[string]func(req *http.Request){
		"changed":  func(req *http.Request) { req.Header.Set("X-Amz-Meta-A", "another") },
		"not sent": func(req *http.Request) { req.Header["X-Amz-Meta-A"] = nil },
	} {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { result <- checkSignature(r) }))
			defer server.Close()
			req := play.MustRequest(t, http.MethodGet, server.URL+"/path", nil)
			req.Header.Set("X-Amz-Meta-A", "one")
			require.NoError(t, sign(req, time.Now()))
			change(req)
			testenv.Drop(t, http.DefaultTransport, req)
			assert.Error(t, <-result)
		})
	}
}
