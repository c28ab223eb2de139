// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"net/http"

	"github.com/retrip/retrip/internal/body"
)

// Kind is the way in which a request body can be replayed.
type Kind uint8

const (
	None   Kind = iota // there is no body
	Memory             // GetBody returns a new body, which is in memory and can't fail
	Gotten             // GetBody returns a new body
	Once               // the body can be read only once
)

// KindOf returns how the body of req can be replayed.
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
