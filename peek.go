// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/body"
)

// Peek returns the first n bytes of the body of resp without consuming them, for
// Policy.Classify: some services report an error inside a 200. There are fewer if the
// body ends or, without a Content-Length, sends nothing for 100 ms, and none if n isn't
// positive, resp has no body, or resp is a 101. If the body broke, Peek returns its
// error, as a later Read does. The bytes must not be changed, and are valid until the
// body is read. Nobody else may use resp meanwhile.
func Peek(resp *http.Response, n int) ([]byte, error) {
	if n <= 0 || !body.In(resp) {
		return nil, nil
	}
	ahead := body.AheadSoon(resp, int64(n), peekPatience)
	resp.Body = ahead
	start := ahead.Bytes(n)
	if err := ahead.Err(); err != nil && err != io.EOF && len(start) < n {
		return start, err
	}
	return start, nil
}

// peekPatience is how long Peek waits for more bytes after the first ones. It is
// longer than the way of a second packet, and hardly delays a stream.
const peekPatience = 100 * time.Millisecond
