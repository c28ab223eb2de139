// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

//go:embed page.html
var pageSource string

//go:embed page.css
var style string

// contentSecurityPolicy allows only the page's own style and form.
var contentSecurityPolicy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
}()

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"style": func() template.CSS { return template.CSS(style) },
	"tokens": func(s retrip.HostState) string {
		if s.Size == 0 {
			return "unlimited"
		}
		return fmt.Sprintf("%.3g of %.7g", s.Tokens, s.Size)
	},
	"exhausted": exhausted,
	"inARow":    func(s retrip.HostState) bool { return s.FailedRetries >= inARow },
	"open":      func(s retrip.HostState) bool { return s.Breaker != "closed" },
	"short": func(d time.Duration) string {
		if d >= 10*time.Second {
			return d.Round(time.Second).String()
		}
		return d.Round(100 * time.Millisecond).String()
	},
	"words": func(r retrip.Reason) string { return strings.ReplaceAll(string(r), "_", "_\u200b") },
	// Spaces let the browser break the line between fields.
	"text": func(data json.RawMessage) string { return strings.ReplaceAll(string(data), `,"`, `, "`) },
	"time": func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") },
	"one": func(n int, one, many string) string {
		if n == 1 {
			return one
		}
		return many
	},
}).Parse(pageSource))
