// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package statuspage serves the state of Transports, as a page for people and
// as JSON for programs. It shows the hosts at which requests failed in the last five
// minutes, and those in trouble, with their last failures and reasons, tokens,
// pauses, breakers and queues, and the policies in force:
//
//	mux.Handle("GET /debug/retrip", statuspage.Handler(map[string]*retrip.Transport{"payments": payments}))
//
// Importing the package registers nothing. The page is read-only and shows no
// URL, header value or body. But it names the hosts that a program calls, and
// shows how healthy they are. Serve it where you serve net/http/pprof: on a port
// of its own or behind authentication, never to the public. In the JSON, held says
// of a host that rules of retrip may hold back requests or retries.
//
// The page has a package of its own because html/template adds about 2 MB to a
// program.
package statuspage

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/retrip/retrip"
)

// Handler returns a handler that shows the current state of the Transports under
// their names in the map. It answers GET and HEAD with a page, or with JSON if
// the query has format=json or the request accepts application/json and not
// text/html. With host=example.com:443 in the query, it also shows the state of
// that host, and its policy with inherited values filled in. If the map is nil
// or empty, the page says that there are no Transports. Handler ignores a nil
// Transport. The map must not be changed after the call. The handler is safe for
// concurrent use.
func Handler(transports map[string]*retrip.Transport) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Cache-Control", "no-store")
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Vary", "Accept")
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			header.Set("Allow", "GET, HEAD")
			http.Error(w, "the status page is read-only", http.StatusMethodNotAllowed)
			return
		}
		s := statusOf(transports, r.URL.Query().Get("host"))
		code := http.StatusOK
		if s.Asked != nil && s.Asked.Error != "" {
			code = http.StatusBadRequest
		}
		var b bytes.Buffer
		if wantsJSON(r) {
			header.Set("Content-Type", "application/json")
			enc := json.NewEncoder(&b)
			enc.SetIndent("", "  ")
			if err := enc.Encode(s); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		} else {
			header.Set("Content-Type", "text/html; charset=utf-8")
			header.Set("Content-Security-Policy", contentSecurityPolicy)
			if err := page.Execute(&b, s); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		w.WriteHeader(code)
		_, _ = w.Write(b.Bytes()) // the client may have gone
	})
}

// wantsJSON reports whether r asks for JSON rather than for the page.
func wantsJSON(r *http.Request) bool {
	switch r.URL.Query().Get("format") {
	case "json":
		return true
	case "html":
		return false
	}
	accept := strings.Join(r.Header.Values("Accept"), ",")
	return strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/html")
}
