// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"net/http"

	"golang.org/x/oauth2"

	"github.com/retrip/retrip"
)

// OAuth2 returns a client whose attempts each carry a valid token. If a token
// expires during a wait, the next attempt gets a new one.
func OAuth2(base http.RoundTripper, tokens oauth2.TokenSource) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: &oauth2.Transport{Base: base, Source: oauth2.ReuseTokenSource(nil, tokens)},
	}}
}
