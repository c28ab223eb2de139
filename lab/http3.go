// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"net/http"

	"github.com/quic-go/quic-go/http3"

	"github.com/retrip/retrip"
)

// ClassifyHTTP3 is a [retrip.Policy.Classify] for quic-go's http3.Transport as
// the base: a stream reset with H3_REQUEST_REJECTED was not processed (RFC 9114
// §4.1.1), so that the request is repeated whatever its method. What else
// quic-go returns needs no classification. It is safe for concurrent use.
func ClassifyHTTP3(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	if e, ok := errors.AsType[*http3.Error](err); ok && e.Remote && e.ErrorCode == http3.ErrCodeRequestRejected {
		return retrip.NotProcessed
	}
	return retrip.ByRule
}
