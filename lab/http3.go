// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"net/http"

	"github.com/quic-go/quic-go/http3"

	"github.com/retrip/retrip"
)

// ClassifyHTTP3 is a [retrip.Policy.Classify] for a base that is quic-go's
// http3.Transport. A stream that was reset with H3_REQUEST_REJECTED was not
// processed (RFC 9114 §4.1.1), so the request may be repeated whatever its
// method. quic-go's other errors need no classification. ClassifyHTTP3 is safe
// for concurrent use.
func ClassifyHTTP3(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	if e, ok := errors.AsType[*http3.Error](err); ok && e.Remote && e.ErrorCode == http3.ErrCodeRequestRejected {
		return retrip.Unprocessed
	}
	return retrip.ByRule
}
