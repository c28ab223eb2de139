// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"net/http"

	"github.com/retrip/retrip/internal/body"
)

// Kind says how the body of a request can be had again.
type Kind uint8

const (
	None   Kind = iota // there is no body
	Memory             // GetBody makes a new one; it is in memory and can't fail
	Gotten             // GetBody makes a new one
	Once               // it can be had only once
)

// KindOf tells how the body of req can be had again.
func KindOf(req *http.Request) Kind {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		return None
	case req.GetBody == nil:
		return Once
	case body.Sound(req.Body, req.ContentLength):
		return Memory
	default:
		return Gotten
	}
}
