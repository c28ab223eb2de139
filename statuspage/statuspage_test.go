// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

var down = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
})

func call(tr *retrip.Transport, host string) {
	resp, err := tr.RoundTrip(&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: host, RawQuery: "secret=query"}, Header: http.Header{}})
	if err == nil {
		resp.Body.Close()
	}
}

// get sends h a GET request with headers, in pairs of name and value.
func get(t *testing.T, h http.Handler, target string, header ...string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, target, nil)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	return w
}

func decoded(t *testing.T, w *httptest.ResponseRecorder) status {
	t.Helper()
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	var s status
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &s))
	return s
}

func TestHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := &retrip.Transport{Base: down, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}},
			Hosts: map[string]retrip.Policy{
				"open.example": {Breaker: retrip.Breaker{MinVolume: 1, OpenFor: time.Minute}},
				"typo.exmaple": {Gate: retrip.Gate{Enabled: retrip.On}, Idempotent: func(*http.Request) bool { return true }},
			}}
		for _, host := range []string{"a.example", "a.example", "open.example"} {
			call(tr, host)
		}
		time.Sleep(time.Second)
		h := Handler(map[string]*retrip.Transport{"b": {}, "a": tr, "nil": nil})

		w := get(t, h, "/debug/retrip?format=json")
		s := decoded(t, w)
		require.Len(t, s.Transports, 2)
		a := s.Transports[0]
		assert.Equal(t, "a", a.Name)
		assert.Equal(t, 2, a.InTrouble)
		assert.Equal(t, 1, a.Open)
		assert.Equal(t, "open.example:443", a.Hosts[0].Host, "the worst first")
		assert.Equal(t, "a.example:443", a.Hosts[1].Host)
		var asJSON struct {
			Transports []struct{ Hosts []map[string]any }
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &asJSON))
		b := asJSON.Transports[0].Hosts[1]
		assert.Equal(t, []any{"server_error", "1s", "max_attempts"}, []any{b["last_failure"], b["failed_ago"], b["last_give_up"]})
		require.Len(t, a.Policies, 3)
		assert.Contains(t, string(a.Policies[0].Policy), `"max_wait": "30s"`, "with inherited values")
		assert.Equal(t, "typo.exmaple", a.Policies[2].Pattern)
		assert.JSONEq(t, `{"gate":{"enabled":true}}`, string(a.Policies[2].Policy), "only what it sets")
		assert.Equal(t, []string{"Idempotent"}, a.Policies[2].Code)
		assert.Empty(t, s.Transports[1].Hosts)

		page := get(t, h, "/debug/retrip").Body.String()
		for _, want := range []string{"open.example:443", "server_", "max_", "<dt>gate.enabled</dt><dd>true</dd>", "<dt>Idempotent</dt><dd>a Go function</dd>", "no request has failed", "2 hosts fail", "1 breaker open", "runbook.md#retripbreakeropen"} {
			assert.Contains(t, page, want)
		}

		// The page follows SetPolicies.
		require.NoError(t, tr.SetPolicies(retrip.Policy{}, map[string]retrip.Policy{"new.example": {}}))
		a = decoded(t, get(t, h, "/?format=json")).Transports[0]
		assert.Equal(t, "new.example", a.Policies[1].Pattern)
	})
}

func TestHandler_OneHost(t *testing.T) {
	tr := &retrip.Transport{Base: down, Policy: retrip.Policy{MaxAttempts: 1}}
	h := Handler(map[string]*retrip.Transport{"a": tr})
	s := decoded(t, get(t, h, "/?format=json&host=Example.com:443"))
	require.Len(t, s.Asked.Of, 1)
	assert.Equal(t, "example.com:443", s.Asked.Of[0].State.Host)
	assert.Contains(t, string(s.Asked.Of[0].Policy), `"max_attempts": 1`)
	assert.Contains(t, get(t, h, "/?host=example.com:443").Body.String(), "example.com:443 in a")

	w := get(t, h, "/?format=json&host="+url.QueryEscape("https://user:pass@example.com/?token=x"))
	assert.Equal(t, http.StatusBadRequest, w.Code)
	assert.NotContains(t, w.Body.String(), "pass")
	assert.NotContains(t, w.Body.String(), "token")
	assert.Contains(t, w.Body.String(), "it is a URL")
	w = get(t, h, "/?host="+url.QueryEscape(`"><script>alert(1)</script>`))
	assert.NotContains(t, w.Body.String(), "<script")
}

// The page finds a host by each text that its own tables show, and by a name without a port.
func TestHandler_LookUp(t *testing.T) {
	tr := &retrip.Transport{Base: down, Hosts: map[string]retrip.Policy{"pattern.example": {MaxAttempts: 1}}}
	tr.Policy = retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}
	long := strings.Repeat("x", 400) + ".example"
	for _, host := range []string{"pattern.example", "twice.example:8080", "twice.example:8081", "[2001:db8::1]:8443", "two\nlines.example", "user:hunter2@by-hand.example", long, "<b>"} {
		call(tr, host)
	}
	for i := range 5000 {
		call(tr, fmt.Sprint("many", i, ".example"))
	}
	find := func(text string) (hosts []string) {
		found, err := lookUp(tr, text)
		require.NoError(t, err)
		for _, state := range found {
			hosts = append(hosts, state.Host)
		}
		return hosts
	}
	for _, state := range tr.HostStates() {
		if !strings.HasPrefix(state.Host, "many") {
			assert.Equal(t, []string{state.Host}, find(shortened(state.Host)))
		}
	}
	for text, want := range map[string][]string{
		"others": {"others"}, "pattern.example": {"pattern.example:443"}, "healthy.example": {"healthy.example:443"}, "TWICE.example": {"twice.example:8080", "twice.example:8081"},
		"[2001:db8::1]": {"[2001:db8::1]:8443"}, "2001:db8::1": {"[2001:db8::1]:8443"}, "[::1]": {"[::1]:443"},
	} {
		assert.Equal(t, want, find(text), text)
	}
}

// A route whose retries are stopped is named, while the host has tokens.
func TestHandler_StoppedRoutes(t *testing.T) {
	tr := &retrip.Transport{Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/search" {
			return down.RoundTrip(r)
		}
		return testenv.Status(200).RoundTrip(r)
	}), Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}}
	for i := range 120 {
		path := "/orders"
		if i%6 == 0 {
			path = "/search"
		}
		resp, err := tr.RoundTrip(&http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: "a.example", Path: path}, Header: http.Header{}})
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	page := get(t, Handler(map[string]*retrip.Transport{"a": tr}), "/").Body.String()
	assert.Contains(t, page, "no retries</a> of GET /search</td>")
	assert.NotContains(t, page, "no retries to 1 host<")
}

// If retries have helped, the page says what the trouble is. That is over minutes later,
// though tokens are missing.
func TestHandler_OnlyAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		tr := &retrip.Transport{Policy: retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, Base: testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if n++; n%4 != 0 {
				return answer(503)(r)
			}
			return answer(200)(r)
		})}
		h := Handler(map[string]*retrip.Transport{"a": tr})
		call(tr, "a.example")
		page := get(t, h, "/").Body.String()
		for _, want := range []string{"only attempts failed at 1 host", "none failed<", "server_", "503"} {
			assert.Contains(t, page, want)
		}
		time.Sleep(5*time.Minute + 1)
		require.True(t, tr.HostStates()[0].Held)
		assert.Contains(t, get(t, h, "/").Body.String(), calm)
	})
}

// Each word that the page links is in the runbook.
func TestRunbook(t *testing.T) {
	text, err := os.ReadFile("../docs/runbook.md")
	require.NoError(t, err)
	sections := strings.ToLower(string(text))
	for _, of := range []retrip.Reason{"fails", "", "paused", "waiting", retrip.ReasonThrottled, retrip.ReasonCanceled, retrip.ReasonTimeout, retrip.ReasonBreakerOpen, retrip.ReasonBudgetExhausted, retrip.ReasonDeadline} {
		_, section, _ := strings.Cut(runbook(of), "/docs/runbook.md#")
		assert.Contains(t, sections, "\n## "+section+"\n", of)
	}
}

func TestHandler_HTTP(t *testing.T) {
	h := Handler(nil)
	w := get(t, h, "/")
	assert.Contains(t, w.Body.String(), "There are no Transports to show.")
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Content-Type": "text/html; charset=utf-8", "Vary": "Accept"} {
		assert.Equal(t, want, w.Header().Get(name))
	}
	assert.Contains(t, w.Header().Get("Content-Security-Policy"), "default-src 'none'")
	assert.Equal(t, "application/json", get(t, h, "/", "Accept", "application/json").Header().Get("Content-Type"))
	assert.Contains(t, get(t, h, "/", "Accept", "text/html,application/json").Header().Get("Content-Type"), "text/html")
	assert.Contains(t, get(t, h, "/?format=html", "Accept", "application/json").Header().Get("Content-Type"), "text/html")
	assert.Empty(t, decoded(t, get(t, h, "/?format=json")).Transports)

	for _, method := range []string{http.MethodPost, http.MethodDelete} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/", nil))
		assert.Equal(t, http.StatusMethodNotAllowed, w.Code)
		assert.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	}
}

// TestHandler_EscapesAndRedacts checks that the page escapes names from outside
// and shows no secret.
func TestHandler_EscapesAndRedacts(t *testing.T) {
	const evil = `"><script>alert('x')</script>`
	tr := &retrip.Transport{Base: down, Hosts: map[string]retrip.Policy{"bold.test": {}}}
	tr.Policy = retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}
	call(tr, evil)
	wrong := &retrip.Transport{Hosts: map[string]retrip.Policy{"https://user:hunter2@example.com/?token=abc": {}, "user:hunter2@example.com": {}, "example.com?token=abc": {}}}
	call(tr, "user:hunter2@by-hand.example")
	call(tr, "two\nlines.example")
	h := Handler(map[string]*retrip.Transport{"<i>name</i>": tr, "wrong": wrong})
	for _, format := range []string{"html", "json"} {
		body := get(t, h, "/?format="+format).Body.String()
		for _, never := range []string{"<script>alert", "<b>bold", "<i>name", "hunter2", "token=abc", "secret=query"} {
			assert.NotContains(t, body, never, format)
		}
		assert.Contains(t, body, "…@by-hand.example")
		assert.Contains(t, strings.ReplaceAll(body, `\\n`, `\n`), `two\nlines.example:443`, "on one line")
		assert.Contains(t, body, "must not have a scheme", "the page names the error")
		assert.Contains(t, body, "alert(", "the page has the host")
		assert.Contains(t, body, "bold.test", "the page has the pattern")
	}
}

// TestHandler_Bounded checks that ten thousand hosts with long names don't make
// an endless page.
func TestHandler_Bounded(t *testing.T) {
	tr := &retrip.Transport{Base: down, Hosts: map[string]retrip.Policy{}}
	tr.Policy.MaxAttempts, tr.Policy.Breaker = 1, retrip.Breaker{Ratio: 1}
	for i := range 10_000 {
		tr.Hosts[fmt.Sprintf("h%d.pattern.example", i)] = retrip.Policy{MaxAttempts: 2, RetryOn: []int{404}}
	}
	for i := range 10_000 {
		call(tr, fmt.Sprintf("host%d.%s.example", i, strings.Repeat("x", 1000)))
	}
	h := Handler(map[string]*retrip.Transport{"a": tr})
	w := get(t, h, "/?format=json")
	s := decoded(t, w).Transports[0]
	assert.Len(t, s.Hosts, maxHosts)
	assert.Greater(t, s.InTrouble, 4000)
	assert.Len(t, s.Policies, maxPolicies)
	assert.Equal(t, 10_000, s.Patterns)
	assert.Less(t, w.Body.Len(), 2<<20)
	for i := range 4000 {
		call(tr, fmt.Sprintf("%s.example:%d", strings.Repeat("y", 1000), 1+i))
	}
	assert.Len(t, decoded(t, get(t, h, "/?format=json&host="+strings.Repeat("y", 1000)+".example")).Asked.Of, maxHosts)
	page := get(t, h, "/").Body
	assert.Less(t, page.Len(), 2<<20)
	assert.Contains(t, page.String(), "The table shows the 1000 worst of")
	assert.Contains(t, page.String(), "The table shows 1000 of 10000 policies.")
}

// TestTemplateStaysOut checks that a program that imports only retrip doesn't get
// html/template.
func TestTemplateStaysOut(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "github.com/retrip/retrip").CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("go is not on the PATH")
	}
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "html/template")
	assert.NotContains(t, string(out), "retrip/statuspage")
}

func TestTokens(t *testing.T) {
	for n, want := range map[float64]string{0: "0", 5: "5", 4.5: "4.5", 0.7000001: "0.7", 2.345678: "2.35", 99.999: "100", 123.4: "123", 10_000: "10000", 9999.5: "10000", 1e6: "1000000"} {
		assert.Equal(t, want, tokens(n), n)
	}
}
