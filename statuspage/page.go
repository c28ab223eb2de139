// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"math"
	"strconv"
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
		return fmt.Sprintf("%s of %s", tokens(s.Tokens), tokens(s.Size))
	},
	"fleet": func(s retrip.HostState) string {
		if s.FleetSize == 0 {
			return ""
		}
		return fmt.Sprintf("%s of %s of the fleet's", tokens(s.FleetTokens), tokens(s.FleetSize))
	},
	"exhausted": exhausted,
	"inARow":    inARow,
	"open":      open,
	"row":       func(at time.Time, s retrip.HostState) row { return row{s, at} },
	"runbook":   runbook,
	"short": func(d time.Duration) string {
		if d >= 10*time.Second {
			return d.Round(time.Second).String()
		}
		return d.Round(100 * time.Millisecond).String()
	},
	// What the status and the error add to the reason.
	"failure": func(s retrip.HostState) string {
		var words []string
		if s.LastStatus > 0 {
			words = append(words, strconv.Itoa(s.LastStatus))
		}
		if s.LastError != "" && s.LastError != string(s.LastFailure) {
			words = append(words, strings.ReplaceAll(s.LastError, "_", " "))
		}
		return strings.Join(words, " ")
	},
	"words": func(r retrip.Reason) string { return strings.ReplaceAll(string(r), "_", "_\u200b") },
	"time":  func(t time.Time) string { return t.Format("2006-01-02 15:04:05 UTC") },
	"one": func(n int, one, many string) string {
		if n == 1 {
			return one
		}
		return many
	},
}).Parse(pageSource))

// row is a row of the table of hosts.
type row struct {
	retrip.HostState
	at time.Time
}

// All is the number of requests that ended in five minutes.
func (r row) All() int { return r.Failed + r.Canceled + r.Answered }

// From and To are the times of the first failed request and of the last.
func (r row) From() string { return clock(r.at.Add(-r.FailingAgo - r.FailingFor)) }
func (r row) To() string   { return clock(r.at.Add(-r.FailingAgo)) }

func clock(t time.Time) string { return t.Format(time.TimeOnly) }

// runbook returns the address of what the runbook says of a reason, or of another word.
func runbook(of retrip.Reason) string {
	section := "retripgivingup"
	switch of {
	case "fails", "", retrip.ReasonServerError, retrip.ReasonStatus, retrip.ReasonPending, retrip.ReasonTimeout, retrip.ReasonError:
		section = "retriprequestsfailing"
	case retrip.ReasonBudgetExhausted, retrip.ReasonRetriesFailing:
		section = "retripbudgetexhausted"
	case retrip.ReasonBreakerOpen:
		section = "retripbreakeropen"
	case retrip.ReasonCanceled:
		section = "retriprequestscanceled"
	case "paused":
		section = "retriphostpaused"
	case "waiting", retrip.ReasonThrottled:
		section = "retripthrottled"
	}
	return "https://github.com/retrip/retrip/blob/main/docs/runbook.md#" + section
}

// tokens writes a number of tokens for people: in full, and with two decimals at most, or
// none from 100 tokens on.
func tokens(n float64) string {
	decimals := 100.0
	if n >= 100 {
		decimals = 1
	}
	return strconv.FormatFloat(math.Round(n*decimals)/decimals, 'f', -1, 64)
}
