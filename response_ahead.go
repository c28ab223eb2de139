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

// Peek returns the first n bytes of the body of resp, fewer only if the body
// ends or breaks before, without taking them from it: whoever reads the body
// gets them all the same. It is for Policy.Classify, since some services report
// an error inside a 200. It waits for the bytes, and the attempt's time runs
// meanwhile.
//
// The error is that of the body, if it ended in one before n bytes, but not
// [io.EOF]; reading the body meets it again. The bytes must not be changed, and
// are valid until the body is read. If n is not positive, or resp has no body
// or is a 101, there are none. Peek must not be called while another goroutine
// uses resp.
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

// hasBody reports whether resp has a body to be read. After 101 Switching
// Protocols there is a connection.
func hasBody(resp *http.Response) bool {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody || resp.StatusCode == http.StatusSwitchingProtocols {
		return false
	}
	_, conn := resp.Body.(io.Writer)
	return !conn
}

// readWhole reads the body of the response ahead, within the attempt, as far as
// Policy.WholeBody says. The response of an attempt that has failed anyway is
// left alone, and so are one whose body is made while somebody listens, and one
// that continues a body, which its reader watches and continues in its turn.
func (x *exchange) readWhole() {
	limit := x.r.policy.WholeBody
	if limit <= 0 || x.continues || x.req.Method == http.MethodConnect || !hasBody(x.resp) || x.r.retry.has(x.resp.StatusCode) || endless(x.resp.Header) || x.attempt != nil && !x.attempt.BodySent() {
		return
	}
	// One byte more shows the end of a body that is just as long.
	ahead := readAhead(x.resp, min(limit, math.MaxInt64-1)+1)
	switch err := ahead.Err(); err {
	case nil:
	case io.EOF:
		x.whole = true
	default:
		x.torn = ahead
	}
}

// endless reports whether a body with the header fields h is one of those that
// go on for as long as there is something to say.
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

// settle ends the attempt, once it is known what there is to say about it.
func (x *exchange) settle() {
	a := x.attempt
	switch {
	case a == nil:
	case x.torn != nil:
		_, err := a.End(nil, x.torn.Err())
		x.torn.SetErr(err)
	case x.whole:
		a.Abandon()
	default:
		x.resp, x.err = a.End(x.resp, x.err)
		x.held = x.resp != nil
	}
}

// failure returns the error that the attempt has ended in, if it has: of the
// base, or of the body of a response that had to be whole.
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
