// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/statuspage"
)

// troubled returns Transports with hosts in every kind of trouble.
func troubled(t *testing.T) map[string]*retrip.Transport {
	t.Helper()
	orders, cart := 0, 0
	base := testenv.RoundTripper(func(req *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: 503, Header: http.Header{}, Body: http.NoBody, Request: req}
		switch req.URL.Host {
		case "search-2.internal":
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		case "quota.partner.example":
			resp.StatusCode = 429
			resp.Header.Set("Retry-After", "20")
		case "orders.internal":
			if orders++; orders > 4 {
				resp.StatusCode = 200
			}
		case "cart.internal": // two outages
			if cart++; cart > 8 && cart <= 20 {
				resp.StatusCode = 200
			}
		case "maintenance.example":
			resp.Header.Set("Retry-After", "25")
		}
		return resp, nil
	})
	payments := &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{AttemptTimeout: 2 * time.Second, Backoff: retrip.Backoff{Base: retrip.Off}, MaxWait: 10 * time.Second},
		Hosts: map[string]retrip.Policy{
			"*.search.internal": {MaxAttempts: 3, Breaker: retrip.Breaker{MinVolume: 2, OpenFor: time.Minute}},
			"*.partner.example": {Gate: retrip.Gate{Enabled: retrip.On}, Dialects: []string{"ratelimit"}},
			"fruad.internal":    {AttemptTimeout: 150 * time.Millisecond},
			"ledger.internal":   {RetryOn: []int{409}, Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }},
		},
	}
	hostile := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}},
		Hosts: map[string]retrip.Policy{"bold.test": {}}}
	invalid := &retrip.Transport{Hosts: map[string]retrip.Policy{"<script>alert(1).test": {}}}
	call := func(tr *retrip.Transport, host string) {
		req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "https", Host: host}, Header: http.Header{}}
		if resp, err := tr.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
	}
	call(hostile, `"><img src=x onerror="document.title='broken'">`)
	for _, host := range []string{"quota.partner.example", "maintenance.example", "a.search.internal:8443", "a.search.internal:8443", "ledger.internal",
		"ledger.internal", "ledger.internal", "ledger.internal", "cards.internal", "search-2.internal",
		"orders.internal", "orders.internal", "orders.internal", "orders.internal"} {
		call(payments, host)
	}
	for range 19 {
		call(payments, "cart.internal")
	}
	return map[string]*retrip.Transport{"payments": payments, "unkind names": hostile, "unkind policies": invalid}
}

// contrast returns every visible text whose contrast with its background is
// below WCAG 2.2 AA.
const contrast = `(() => {
	const rgb = c => c.match(/[\d.]+/g).map(Number);
	const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 }); return .2126 * r + .7152 * g + .0722 * b };
	const ground = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (rgb(c)[3] !== 0) return c } return 'rgb(255, 255, 255)' };
	const low = [];
	for (const e of document.querySelectorAll('body *')) {
		const own = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim() !== '') || e.tagName === 'INPUT';
		if (!own) continue;
		const a = light(getComputedStyle(e).color), b = light(ground(e));
		const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
		if (ratio < 4.5) low.push(e.tagName + ' ' + e.className + ' ' + e.textContent.slice(0, 20) + ': ' + ratio.toFixed(2));
	}
	return low;
})()`

// headers returns the tables with a cell that has no column or row header.
const headers = `[...document.querySelectorAll('table')].filter(t =>
	[...t.querySelectorAll('thead th')].some(h => h.scope !== 'col') ||
	[...t.querySelectorAll('tbody tr')].some(r => r.children[0].tagName !== 'TH' || r.children[0].scope !== 'row' || r.children.length !== t.querySelectorAll('thead th').length)).length`

// browser returns the context of a headless browser, in which ops.internal is this
// machine, or skips the test.
func browser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed (apt-get install chromium)")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()),
		chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-quic", true), chromedp.Flag("host-resolver-rules", "MAP ops.internal 127.0.0.1"), chromedp.WindowSize(1280, 900))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 25*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// The page works in a real browser, in light and dark mode, and a name never
// becomes markup. If SCREENSHOTS is set in the environment, the test saves
// screenshots to that directory; docs/img/statuspage.png is one of them.
func TestStatusPage_InABrowser(t *testing.T) {
	server := httptest.NewServer(statuspage.Handler(troubled(t)))
	defer server.Close()
	ctx, cancel := context.WithCancel(browser(t))
	defer cancel()

	// The console listener must not miss a CSP violation.
	messages := chromedp.Console(ctx)
	for _, scheme := range []string{"light", "dark"} {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
		require.NoError(t, err)
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(server.URL+"/debug/retrip")))
		title := play.Must(chromedp.Run(ctx, chromedp.Title()))
		assert.Equal(t, "retrip: hosts and policies", title, "no name runs as code")
		ground := play.Must(chromedp.Run(ctx, chromedp.Evaluate[string](`getComputedStyle(document.body).backgroundColor`)))
		assert.Equal(t, map[string]string{"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme], ground, "its style applies")
		low := play.Must(chromedp.Run(ctx, chromedp.Evaluate[[]string](contrast)))
		assert.Empty(t, low, "%s: too little contrast", scheme)
		bad := play.Must(chromedp.Run(ctx, chromedp.Evaluate[int](headers)))
		assert.Zero(t, bad, "tables without headers")
		wide := play.Must(chromedp.Run(ctx, chromedp.Evaluate[bool](`document.documentElement.scrollWidth > innerWidth`)))
		assert.False(t, wide, "it scrolls sideways")
		text := play.Must(chromedp.Run(ctx, chromedp.Text("main")))
		for _, want := range []string{"a.search.internal:8443", "ledger.internal:443", "<script>alert(1).test", "onerror", "a Go function", "1 host has recovered"} {
			assert.Contains(t, text, want)
		}
		if dir := os.Getenv("SCREENSHOTS"); dir != "" {
			png := play.Must(chromedp.Run(ctx, chromedp.Screenshot(`section[aria-label="payments"]`)))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "statuspage-"+scheme+".png"), png, 0o644))
		}
	}

	// A user looks up one host.
	require.NoError(t, chromedp.Do(ctx, chromedp.SendKeys("#host", "ledger.internal:443\r"), chromedp.WaitVisible("#asked")))
	text := play.Must(chromedp.Run(ctx, chromedp.Text("main")))
	assert.Contains(t, text, "ledger.internal:443 in payments")
	assert.Contains(t, text, "attempt_timeout\n2s")

	// A narrow window doesn't scroll sideways either.
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(360, 800), chromedp.Navigate(server.URL)))
	wide := play.Must(chromedp.Run(ctx, chromedp.Evaluate[string](`document.documentElement.scrollWidth + " of " + innerWidth`)))
	assert.Equal(t, "360 of 360", wide)
	cancel()
	for m, err := range messages {
		if err != nil {
			break
		}
		assert.NotContains(t, fmt.Sprint(m), "Content Security Policy", "the browser refuses a part of the page")
	}
}
