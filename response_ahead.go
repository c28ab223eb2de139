// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"io"
	"math"
	"net/http"
	"strings"

	"github.com/retrip/retrip/internal/body"
)

// Peek returns the first n bytes of the body of resp without consuming them. It
// returns fewer bytes only if the body ends or breaks earlier. Peek is meant
// for Policy.Classify, because some services report an error inside a 200. It
// waits for the bytes, and AttemptTimeout keeps running meanwhile.
//
// If the body broke before n bytes, Peek returns the body's error, which a
// later Read of the body returns again. [io.EOF] is not an error. The bytes
// must not be changed, and are valid until the body is read. Peek returns no
// bytes if n is not positive, resp has no body, or resp is a 101. No other
// goroutine may use resp during the call.
func Peek(resp *http.Response, n int) ([]byte, error) {
	if n <= 0 || !hasBody(resp) {
		return nil, nil
	}
	ahead := readAhead(resp, int64(n))
	if err := ahead.Err(); err != nil && err != io.EOF && len(ahead.Bytes()) < n {
		return ahead.Bytes(), err
	}
	return ahead.Bytes()[:min(n, len(ahead.Bytes()))], nil
}

// readAhead reads up to n bytes of the body of resp ahead.
func readAhead(resp *http.Response, n int64) *body.Prefixed {
	ahead := body.Ahead(resp.Body, n, resp.ContentLength)
	resp.Body = ahead
	return ahead
}

// hasBody reports whether resp has a body to read. After 101 Switching
// Protocols it has a connection instead.
func hasBody(resp *http.Response) bool {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return false
	}
	_, conn := resp.Body.(io.Writer)
	return !conn
}

// readWhole reads the body of the response ahead, within the attempt, up to
// Policy.WholeBody. It skips a response that is retried anyway, one whose body
// the server produces over time, and one that continues a body, because the
// reader of that body watches and continues it.
func (x *exchange) readWhole() {
	limit := x.r.policy.WholeBody
	if limit <= 0 || x.continues || x.req.Method == http.MethodConnect || !hasBody(x.resp) || x.r.retry.has(x.resp.StatusCode) || endless(x.resp.Header) || x.attempt != nil && !x.attempt.BodySent() {
		return
	}
	// One more byte reveals the end of a body of exactly that length.
	ahead := readAhead(x.resp, min(limit, math.MaxInt64-1)+1)
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		x.whole = true
	default:
		ahead.SetErr(usable(err))
		x.torn = ahead
	}
}

// endless reports whether a body with the header fields h is a stream that
// lasts for as long as the server has something to send.
func endless(h http.Header) bool {
	kind, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	kind = strings.ToLower(strings.TrimSpace(kind))
	switch kind {
	case "text/event-stream", "multipart/x-mixed-replace",
		"application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/json-seq", "application/stream+json":
		return true
	}
	return strings.HasPrefix(kind, "application/grpc") || strings.HasPrefix(kind, "application/connect+")
}

// settle ends the attempt once its outcome is known.
func (x *exchange) settle() {
	a := x.attempt
	switch {
	case a == nil:
	case x.torn != nil:
		_, err := a.End(nil, x.torn.Err())
		x.torn.SetErr(err)
	case x.whole:
		a.Finish(x.resp)
	default:
		x.resp, x.err = a.End(x.resp, x.err)
		x.held = x.resp != nil
	}
}

// failure returns the error of the attempt, if it failed: that of the base, or
// that of a response body that had to be whole.
func (x *exchange) failure() error {
	if x.torn != nil {
		return tornError{x.torn.Err()}
	}
	return x.err
}

// tornError is the error of a body that broke within its attempt.
type tornError struct{ error }

func (e tornError) Error() string { return fmt.Sprintf("response body: %v", e.error) }
func (e tornError) Unwrap() error { return e.error }
