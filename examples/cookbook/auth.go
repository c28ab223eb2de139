// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"errors"
	"net/http"
	"time"

	"golang.org/x/oauth2"

	"github.com/retrip/retrip"
)

// OAuth2 returns a client whose attempts each carry a valid token. If a token
// expires during a wait, the next attempt gets a new one. Give the client that
// asks for tokens a Timeout, because no context of a request ends it.
func OAuth2(base http.RoundTripper, tokens oauth2.TokenSource) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base:   &oauth2.Transport{Base: base, Source: oauth2.ReuseTokenSource(nil, tokens)},
		Policy: retrip.Policy{Classify: refusedLogin, AttemptTimeout: 5 * time.Second, Deadline: 2 * time.Minute},
	}}
}

// refusedLogin is a Policy.Classify: a secret that the token endpoint refuses
// is as wrong in the next attempt, and more of them may lock the account.
func refusedLogin(_ *http.Request, _ *http.Response, err error) retrip.Verdict {
	no, ok := errors.AsType[*oauth2.RetrieveError](err)
	if ok && no.Response.StatusCode < 500 && no.Response.StatusCode != http.StatusTooManyRequests {
		return retrip.Final
	}
	return retrip.ByRule
}
