// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/span"
	"github.com/retrip/retrip/internal/testenv"
)

func TestValidate_Accepts(t *testing.T) {
	const off = retrip.Off
	const forever = span.Forever
	for name, p := range map[string]retrip.Policy{
		"zero": {},
		"everything off": {Backoff: retrip.Backoff{Base: off, ThrottleBase: off}, Deadline: off, AttemptTimeout: off, MaxReplayBody: off,
			Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: off}, IdempotencyKey: off, Gate: retrip.Gate{Enabled: off}, RetryHeader: "Off"},
		"a cap below the default ThrottleBase":  {Backoff: retrip.Backoff{Cap: 500 * time.Millisecond}},
		"a base above the default ThrottleBase": {Backoff: retrip.Backoff{Base: 5 * time.Second}},
		"a ThrottleBase above the cap":          {Backoff: retrip.Backoff{ThrottleBase: time.Minute}},
		"lowest": {MaxAttempts: 1, Backoff: retrip.Backoff{Base: 1, Cap: 1, ThrottleBase: 1, Jitter: retrip.FullJitter}, Deadline: 10, AttemptTimeout: 1, MaxWait: 1,
			MaxReplayBody: 1, RetryOn: []int{400}, FailOn: []int{500}, Budget: 1,
			Breaker: retrip.Breaker{Ratio: 0.01, Window: 1, MinVolume: 1, OpenFor: 1}},
		"highest": {MaxAttempts: math.MaxInt, Backoff: retrip.Backoff{Base: forever, Cap: forever, ThrottleBase: forever, Jitter: retrip.NoJitter}, Deadline: forever,
			MaxWait: forever, MaxReplayBody: math.MaxInt64, RetryOn: []int{599}, IdempotentMethods: []string{"PATCH", "x!"},
			Budget: 1e6, Breaker: retrip.Breaker{Ratio: 1, Window: forever, MinVolume: math.MaxInt, OpenFor: forever}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.NoError(t, (&retrip.Transport{Policy: p}).Validate())
			assert.NoError(t, (&retrip.Transport{Hosts: map[string]retrip.Policy{"example.com": p}}).Validate())
		})
	}
}

// The error names the host and field of every invalid value.
func TestValidate_Refuses(t *testing.T) {
	tests := []struct {
		policy retrip.Policy
		want   string // the text after the host
	}{
		{retrip.Policy{MaxAttempts: -2}, "MaxAttempts is -2: it must be positive, or 0 to inherit"},
		{retrip.Policy{MaxAttempts: retrip.Off}, "MaxAttempts is Off: use 1 for no retries"},
		{retrip.Policy{Backoff: retrip.Backoff{Base: -2}}, "Backoff.Base is -2ns: it must be positive, 0 to inherit or Off"},
		{retrip.Policy{Backoff: retrip.Backoff{Cap: retrip.Off}}, "Backoff.Cap is Off: use a long duration, such as 24h, to let waits keep growing; set Base to Off for no waits"},
		{retrip.Policy{Backoff: retrip.Backoff{Jitter: 5}}, "Backoff.Jitter is Jitter(5)"},
		{retrip.Policy{Deadline: -time.Second}, "Deadline is -1s"},
		{retrip.Policy{MaxWait: retrip.Off}, "MaxWait is Off: use 1ns to refuse every wait, or a long duration, such as 24h, to accept any"},
		{retrip.Policy{MaxReplayBody: -2}, "MaxReplayBody is -2: it must be positive, 0 to inherit or Off"},
		{retrip.Policy{RetryOn: []int{404, 399}}, "RetryOn is 399: a status must be 400 to 599"},
		{retrip.Policy{FailOn: []int{600}}, "FailOn is 600"},
		{retrip.Policy{IdempotentMethods: []string{"PATCH", ""}}, `IdempotentMethods is "": it must be an HTTP method`},
		{retrip.Policy{IdempotentMethods: []string{"*"}}, `IdempotentMethods is "*": it must be an HTTP method`},
		{retrip.Policy{IdempotentMethods: []string{"POST", "Patch"}}, `IdempotentMethods is "Patch": it must be in capital letters`},
		{retrip.Policy{Dialects: []string{"github", "gitlab"}}, `Dialects is "gitlab": it must be one of ["`},
		{retrip.Policy{IdempotencyKey: 2}, "IdempotencyKey is Switch(2): it must be On, 0 to inherit or Off"},
		{retrip.Policy{Gate: retrip.Gate{Enabled: -2}}, "Gate.Enabled is Switch(-2): it must be On"},
		{retrip.Policy{RetryHeader: "A B"}, `RetryHeader is "A B": it must be the name of a header, or "off"`},
		{retrip.Policy{Budget: -2}, "Budget is -2: it must be 1 to 1e+06, 0 to inherit or Off"},
		{retrip.Policy{Budget: 1e6 + 1}, "Budget is 1.000001e+06"},
		{retrip.Policy{Budget: math.NaN()}, "Budget is NaN"},
		{retrip.Policy{Breaker: retrip.Breaker{Ratio: 1.1}}, "Breaker.Ratio is 1.1: it must be 0.01 to 1"},
		{retrip.Policy{Breaker: retrip.Breaker{Ratio: math.NaN()}}, "Breaker.Ratio is NaN"},
		{retrip.Policy{Breaker: retrip.Breaker{Window: retrip.Off}}, "Breaker.Window is Off: set Ratio to Off for no breaker"},
		{retrip.Policy{Breaker: retrip.Breaker{MinVolume: retrip.Off}}, "Breaker.MinVolume is Off: set Ratio to Off for no breaker"},
		{retrip.Policy{Breaker: retrip.Breaker{OpenFor: -2}}, "Breaker.OpenFor is -2ns: it must be positive, or 0"},
		{retrip.Policy{Breaker: retrip.Breaker{OpenFor: retrip.Off}}, "Breaker.OpenFor is Off: set Ratio to Off for no breaker"},

		{retrip.Policy{Backoff: retrip.Backoff{Base: 11 * time.Second}}, "Backoff.Base is 11s: it must not be more than Backoff.Cap, which is 10s"},
		{retrip.Policy{Backoff: retrip.Backoff{Cap: time.Millisecond}}, "Backoff.Base is 100ms: it must not be more than Backoff.Cap, which is 1ms"},
		{retrip.Policy{RetryOn: []int{502}, FailOn: []int{502}}, "FailOn is 502: RetryOn lists this status too"},
		{retrip.Policy{Unprocessed: []int{429}, FailOn: []int{429}}, "FailOn is 429: Unprocessed lists this status too"},
	}
	for _, tt := range tests {
		t.Run(tt.want, func(t *testing.T) {
			for path, tr := range map[string]*retrip.Transport{
				"Policy":               {Policy: tt.policy},
				`Hosts["example.com"]`: {Hosts: map[string]retrip.Policy{"example.com": tt.policy}},
			} {
				err := tr.Validate()
				require.ErrorContains(t, err, "retrip: "+path+"."+tt.want)
				assert.Equal(t, 1, strings.Count(err.Error(), "retrip: "), "once: %v", err)

				tr.Base = testenv.Status(200)
				req, _ := http.NewRequest(http.MethodGet, "http://example.com", nil)
				resp, got := tr.RoundTrip(req)
				assert.Nil(t, resp)
				require.Error(t, got)
				assert.Equal(t, err.Error(), got.Error(), "RoundTrip says the same")
			}
		})
	}
}

// The error reports all mistakes at once, in a fixed order.
func TestValidate_TellsAll(t *testing.T) {
	tr := &retrip.Transport{
		Policy: retrip.Policy{MaxAttempts: -7, MaxWait: -2},
		Hosts: map[string]retrip.Policy{
			"b.example": {Deadline: -5}, "a.example": {RetryOn: []int{200, 302}}, "*": {}, "good.example": {MaxAttempts: 3},
		},
	}
	want := []string{"Policy.MaxAttempts is -7", "Policy.MaxWait is -2ns", `Hosts["*"]: `, `Hosts["a.example"].RetryOn is 200`,
		`Hosts["a.example"].RetryOn is 302`, `Hosts["b.example"].Deadline is -5ns`}
	for range 10 {
		lines := strings.Split(tr.Validate().Error(), "\n")
		require.Len(t, lines, len(want))
		for i, line := range lines {
			assert.True(t, strings.HasPrefix(line, "retrip: "+want[i]), "%s: want %s", line, want[i])
		}
	}
}

// Fields that are valid by themselves may contradict inherited ones.
func TestValidate_Inherited(t *testing.T) {
	tr := &retrip.Transport{
		Policy: retrip.Policy{Backoff: retrip.Backoff{Cap: time.Second}, Unprocessed: []int{429}},
		Hosts:  map[string]retrip.Policy{"slow.example": {Backoff: retrip.Backoff{Base: 2 * time.Second}}, "own.example": {FailOn: []int{429}}},
	}
	err := tr.Validate()
	assert.ErrorContains(t, err, `Hosts["slow.example"].Backoff.Base is 2s: it must not be more than Backoff.Cap, which is 1s`)
	assert.ErrorContains(t, err, `Hosts["own.example"].FailOn is 429: Unprocessed lists this status too`)
	tr.Hosts["own.example"] = retrip.Policy{FailOn: []int{429}, Unprocessed: []int{}}
	delete(tr.Hosts, "slow.example")
	assert.NoError(t, tr.Validate())
}

// bounded is a base that limits how long an attempt may take.
var bounded = &http.Transport{ResponseHeaderTimeout: time.Minute}

// Advice says that nothing limits how long a request may take, once for all hosts that
// inherit it. What limits a single attempt is enough.
func TestAdvice_Time(t *testing.T) {
	const want = "retrip: %s sets neither AttemptTimeout nor Deadline: a request whose context has no deadline waits as long as the server stays silent"
	limited, off := retrip.Policy{AttemptTimeout: time.Second}, retrip.Policy{AttemptTimeout: retrip.Off, Deadline: retrip.Off}
	for _, tt := range []struct {
		base   http.RoundTripper
		policy retrip.Policy
		host   retrip.Policy
		want   []string
	}{
		{nil, retrip.Policy{}, retrip.Policy{}, []string{fmt.Sprintf(want, "Policy")}},
		{&http.Transport{}, retrip.Policy{}, limited, []string{fmt.Sprintf(want, "Policy")}},
		{nil, off, retrip.Policy{}, []string{fmt.Sprintf(want, "Policy")}},
		{nil, limited, off, []string{fmt.Sprintf(want, `Hosts["a.example"]`)}},
		{nil, limited, retrip.Policy{}, []string{}},
		{nil, retrip.Policy{Deadline: time.Second, MaxAttempts: 1}, retrip.Policy{}, []string{}},
		{bounded, retrip.Policy{}, off, []string{}},
	} {
		assert.Equal(t, tt.want, (&retrip.Transport{Base: tt.base, Policy: tt.policy, Hosts: map[string]retrip.Policy{"a.example": tt.host}}).Advice())
	}
}

// A policy by which all hosts' POSTs may run twice is seldom meant.
func TestAdvice_Methods(t *testing.T) {
	for _, method := range []string{"POST", "PATCH"} {
		twice := retrip.Policy{IdempotentMethods: []string{"PROPFIND", method}}
		assert.Equal(t, []string{"retrip: Policy.IdempotentMethods lists " + method + ": after a lost response, every " + method +
			" to these hosts runs twice; use Unprocessed or IdempotencyKey, or list it for hosts whose every " + method + " only reads"},
			(&retrip.Transport{Base: bounded, Policy: twice}).Advice())
		assert.Empty(t, (&retrip.Transport{Base: bounded, Hosts: map[string]retrip.Policy{"search.example": twice}}).Advice())
	}
	copied := retrip.Policy{Unprocessed: []int{429, 503, 504}} // as people list what is retried
	assert.Equal(t, []string{"retrip: Policy.Unprocessed lists 504: after it, a POST that was processed runs twice; list it for hosts whose API says that it did nothing"},
		(&retrip.Transport{Base: bounded, Policy: copied}).Advice())
	assert.Empty(t, (&retrip.Transport{Base: bounded, Hosts: map[string]retrip.Policy{"search.example": copied}}).Advice())
	assert.Empty(t, (&retrip.Transport{Base: bounded, Policy: retrip.Policy{IdempotentMethods: []string{"PROPFIND"}, Unprocessed: []int{429, 503}}}).Advice())
}

func TestAdvice_Deadline(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	payments := retrip.Policy{Backoff: retrip.Backoff{Cap: 2 * s}, AttemptTimeout: 150 * ms}
	with := func(f func(*retrip.Policy)) retrip.Policy {
		p := payments
		f(&p)
		return p
	}
	tests := []struct {
		name   string
		policy retrip.Policy
		want   string
	}{
		// 4 × 150 ms, and 100 + 200 + 400 ms.
		{"fits", with(func(p *retrip.Policy) { p.Deadline = 1300 * ms }), ""},
		{"does not fit", with(func(p *retrip.Policy) { p.Deadline = 1299 * ms }),
			"Deadline is 1.299s: 4 attempts of 150ms with waits of up to 700ms in total need 1.3s"},
		{"the wait after a 429 is left out", with(func(p *retrip.Policy) { p.Deadline, p.Backoff.ThrottleBase = 1300*ms, 2*s }), ""},
		{"no deadline", payments, ""},
		{"deadline off", with(func(p *retrip.Policy) { p.Deadline = retrip.Off }), ""},
		{"no attempt timeout", retrip.Policy{Deadline: s}, "Deadline is 1s, and there is no AttemptTimeout: an attempt without an answer takes all of it"},
		{"the deadline bounds the attempts", retrip.Policy{Deadline: 1}, ""},
		{"no attempt timeout, no retries", retrip.Policy{Deadline: s, MaxAttempts: 1}, ""},
		{"least", retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}, AttemptTimeout: 1, Deadline: 1},
			"Deadline is 1ns: 2 attempts of 1ns with waits of up to 0s in total need 2ns"},
		{"no retries", with(func(p *retrip.Policy) { p.Deadline, p.MaxAttempts = 150*ms, 1 }), ""},
		{"attempts of seconds", retrip.Policy{AttemptTimeout: 3 * s, Deadline: 12 * s, Backoff: retrip.Backoff{Base: retrip.Off}}, ""},
		{"decorrelated", with(func(p *retrip.Policy) { p.Deadline, p.Backoff.Jitter = s, retrip.DecorrelatedJitter }),
			// 300 + 900 + 2000 ms.
			"4 attempts of 150ms with waits of up to 3.2s in total need 3.8s"},
		{"no backoff", with(func(p *retrip.Policy) { p.Deadline, p.Backoff.Base = 600*ms, retrip.Off }), ""},
		{"a thousand attempts", retrip.Policy{MaxAttempts: 1000, Backoff: retrip.Backoff{Base: s, Cap: s}, AttemptTimeout: s, Deadline: s},
			"1000 attempts of 1s with waits of up to 16m39s in total need 33m19s"},
		{"attempts without end", retrip.Policy{MaxAttempts: math.MaxInt, AttemptTimeout: time.Hour, Deadline: s},
			"with waits of up to 2562047h47m16.854775807s in total need 2562047h47m16.854775807s"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check := func(tr *retrip.Transport, path string) {
				assert.NoError(t, tr.Validate())
				if advice := tr.Advice(); tt.want == "" {
					assert.Empty(t, advice)
				} else if assert.Len(t, advice, 1) {
					assert.Contains(t, advice[0], path)
					assert.Contains(t, advice[0], tt.want)
				}
			}
			check(&retrip.Transport{Base: bounded, Policy: tt.policy}, "retrip: Policy.Deadline")
			check(&retrip.Transport{Base: bounded, Hosts: map[string]retrip.Policy{"*.example.com": tt.policy}}, `retrip: Hosts["*.example.com"].Deadline`)
		})
	}
}

func TestAdvice_Backoff(t *testing.T) {
	hasty := retrip.Policy{MaxAttempts: 500, Backoff: retrip.Backoff{Base: retrip.Off}}
	assert.Equal(t, []string{"retrip: Policy.MaxAttempts is 500, with waits of up to 0s in total: an outage that lasts longer fails all of them; set Backoff, or fewer attempts"},
		(&retrip.Transport{Base: bounded, Policy: hasty}).Advice())
	hasty.Backoff = retrip.Backoff{Base: time.Millisecond, Cap: 5 * time.Millisecond}
	assert.Len(t, (&retrip.Transport{Base: bounded, Hosts: map[string]retrip.Policy{"a.example": hasty}}).Advice(), 1)
	cut := retrip.Policy{Backoff: retrip.Backoff{ThrottleBase: 30 * time.Second}}
	assert.Equal(t, []string{"retrip: Policy.Backoff.ThrottleBase is 30s, but no wait is longer than Backoff.Cap, which is 10s: raise Cap"},
		(&retrip.Transport{Base: bounded, Policy: cut}).Advice())
	for _, p := range []retrip.Policy{{MaxAttempts: 500}, {Backoff: retrip.Backoff{Cap: 200 * time.Millisecond}}, {MaxAttempts: 10, Backoff: retrip.Backoff{Base: retrip.Off}}, {MaxAttempts: 11, Backoff: retrip.Backoff{Base: 10 * time.Millisecond, Cap: 20 * time.Millisecond}}} {
		assert.Empty(t, (&retrip.Transport{Base: bounded, Policy: p}).Advice(), p.MaxAttempts)
	}
}

// What is advice is no mistake, and stops no request. What is a mistake leaves no advice
// about policies.
func TestAdvice_StopsNothing(t *testing.T) {
	tr := &retrip.Transport{
		Base:   &retrip.Transport{Base: testenv.Status(200)},
		Policy: retrip.Policy{Deadline: time.Second, AttemptTimeout: time.Second, Dialects: []string{"openai"}},
	}
	assert.Len(t, tr.Advice(), 3)
	assert.NoError(t, tr.Validate())
	assert.NoError(t, tr.SetPolicies(tr.Policy, nil))
	wrong := &retrip.Transport{Base: tr.Base, Policy: tr.Policy, Hosts: map[string]retrip.Policy{"a b": {}}}
	assert.Error(t, wrong.Validate())
	assert.Len(t, wrong.Advice(), 1)
	many := &retrip.Transport{Base: bounded, Hosts: map[string]retrip.Policy{}}
	for i := range 100 {
		many.Hosts[fmt.Sprintf("h%d.example", i)] = tr.Policy
	}
	assert.Len(t, many.Advice(), 21)
	resp := do(t, tr, play.MustRequest(t, http.MethodGet, "http://example.com/", nil))
	assert.Equal(t, 200, resp.StatusCode)
	assert.NoError(t, resp.Body.Close())
}

func TestAdvice_NestedTransport(t *testing.T) {
	inner, itself := &retrip.Transport{}, &viaField{}
	itself.Base = itself
	eight := http.RoundTripper(inner)
	for range 8 {
		eight = viaUnwrap{inner: eight}
	}
	for name, tt := range map[string]struct {
		base    http.RoundTripper
		retries bool
	}{
		"http.Transport":       {&http.Transport{}, false},
		"itself":               {inner, true},
		"field":                {&viaField{Base: inner}, true},
		"embedded":             {viaEmbedding{inner}, true},
		"Unwrap":               {viaUnwrap{inner: inner}, true},
		"two levels":           {viaField{Base: viaUnwrap{inner: &viaField{Base: inner}}}, true},
		"eight levels":         {eight, true},
		"field of another":     {&viaField{Base: &http.Transport{}}, false},
		"empty field":          {&viaField{}, false},
		"Unwrap to nil":        {viaUnwrap{}, false},
		"nil pointer":          {(*viaField)(nil), false},
		"field that is hidden": {viaHidden{base: inner}, false},
		"wrapped in itself":    {itself, false},
	} {
		t.Run(name, func(t *testing.T) {
			advice := (&retrip.Transport{Base: tt.base, Policy: retrip.Policy{AttemptTimeout: time.Second}}).Advice()
			if tt.retries {
				assert.Contains(t, fmt.Sprint(advice), "another retrip.Transport")
			} else {
				assert.Empty(t, advice)
			}
		})
	}
}

type (
	viaField struct {
		testenv.Status
		Base http.RoundTripper
	}
	viaUnwrap struct {
		testenv.Status
		inner http.RoundTripper
	}
	viaHidden struct {
		testenv.Status
		base http.RoundTripper
	}
	viaEmbedding struct{ *retrip.Transport }
)

func (v viaUnwrap) Unwrap() http.RoundTripper { return v.inner }

// A dialect says when to retry, but doesn't make a POST repeatable.
func TestAdvice_DialectOfPOSTsWithoutAWayToRepeatThem(t *testing.T) {
	byRule := func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule }
	for _, tt := range []struct {
		policy retrip.Policy
		want   bool
	}{
		{retrip.Policy{Dialects: []string{"openai"}}, true},
		{retrip.Policy{Dialects: []string{"anthropic"}}, true},
		{retrip.Policy{Dialects: []string{"github", "stripe"}}, false},
		{retrip.Policy{Dialects: []string{"openai"}, Unprocessed: []int{429}}, false},
		{retrip.Policy{Dialects: []string{"openai"}, IdempotencyKey: retrip.On}, false},
		{retrip.Policy{Dialects: []string{"openai"}, IdempotentMethods: []string{"POST"}}, false},
		{retrip.Policy{Dialects: []string{"openai"}, Idempotent: func(*http.Request) bool { return true }}, false},
		{retrip.Policy{Dialects: []string{"openai"}, Classify: byRule}, false},
		{retrip.Policy{Dialects: []string{"openai"}, MaxAttempts: 1}, false},
	} {
		said := fmt.Sprintf(".Dialects is %q: calls of this API are POSTs, and the policy would never repeat a POST", tt.policy.Dialects[0])
		own := (&retrip.Transport{Policy: tt.policy}).Advice()
		ofHost := (&retrip.Transport{Hosts: map[string]retrip.Policy{"api.example": tt.policy}}).Advice()
		assert.Equal(t, tt.want, strings.Contains(fmt.Sprint(own), "retrip: Policy"+said), own)
		assert.Equal(t, tt.want, strings.Contains(fmt.Sprint(ofHost), `retrip: Hosts["api.example"]`+said), ofHost)
	}
}

// However long a wrong value is, the error shows little of it.
func TestValidate_LongValues(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for _, tr := range []*retrip.Transport{
		{Policy: retrip.Policy{RetryOn: slices.Repeat([]int{500}, 1000)}},
		{Policy: retrip.Policy{Dialects: slices.Repeat([]string{long}, 150)}},
		{Metrics: &retrip.Metrics{Durations: []string{long + "/"}}},
	} {
		err := tr.Validate()
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 8<<10)
	}
	for _, host := range []string{long, long + ":80", "http://" + long, "a:" + long, "*" + long, "[" + long + "]:1", long + "?"} {
		_, err := new(retrip.Transport).HostState(host)
		require.Error(t, err)
		assert.Less(t, len(err.Error()), 8<<10)
	}
}
