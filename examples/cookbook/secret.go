// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
)

// PathSecret is a base that puts a secret in the place of "{secret}" in the path, such
// as https://api.telegram.org/bot{secret}/getMe. The URL that logs, hooks, spans and
// errors show has only the name.
type PathSecret struct {
	Base   http.RoundTripper
	Secret string
}

// RoundTrip implements http.RoundTripper.
func (p PathSecret) RoundTrip(req *http.Request) (*http.Response, error) {
	sent := req.Clone(req.Context())
	sent.URL.Path = strings.ReplaceAll(req.URL.Path, "{secret}", p.Secret)
	sent.URL.RawPath = strings.ReplaceAll(req.URL.RawPath, "{secret}", url.PathEscape(p.Secret))
	resp, err := cmp.Or(p.Base, http.DefaultTransport).RoundTrip(sent)
	if resp != nil {
		resp.Request = req
	}
	return resp, err
}
