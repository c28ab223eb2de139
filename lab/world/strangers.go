// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

// stranger returns the host, as in a URL, of a server that doesn't exist. It refuses
// connections if known is true, and otherwise there is no such host.
func stranger(n int, known bool) string {
	if known {
		return fmt.Sprintf([]string{"refuses-%d.test", "REFUSES-%d.test.", "refuses-bücher-%d.test", "refuses-%d.test:8443"}[n%4], n)
	}
	switch n % 8 {
	case 0:
		return fmt.Sprintf("[2001:db8::%x]", n)
	case 1:
		return fmt.Sprintf("[FE80::%x%%25eth0]:8080", n)
	case 2:
		return fmt.Sprintf("bücher-%d.test", n)
	case 3:
		return fmt.Sprintf("NOBODY-%d.test.", n)
	case 4:
		return fmt.Sprintf("192.0.2.%d:0%d", n%250, 1+n%9000)
	case 5:
		return fmt.Sprintf("[0:0::ffff:192.0.2.%d]:443", n%250)
	case 6:
		return fmt.Sprintf("nobody-%d。test", n)
	}
	return fmt.Sprintf("nobody-%d.test", n)
}

// meet sends requests to that many strangers at once.
func (c *client) meet(strangers int, salt uint64) {
	w := c.w
	c.mu.Lock()
	c.forgot = true
	c.strangers += strangers
	c.mu.Unlock()
	var requests sync.WaitGroup
	for i := range strangers {
		requests.Go(func() {
			n := int((salt + uint64(i)) % 50_000)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			p := retrip.Policy{MaxAttempts: 1 + min(1, i%4), AttemptTimeout: 10 * time.Second}
			host := stranger(n, i%8 != 0)
			req, err := http.NewRequestWithContext(retrip.WithPolicy(ctx, p), http.MethodGet, "http://"+host+"/", nil)
			must(err)
			resp, err := c.retrip.RoundTrip(req)
			if err == nil {
				w.breaks("P3", "t%d: %s answers %d, and there is no such server", c.number, host, resp.StatusCode)
				_ = resp.Body.Close()
			}
			if i%64 == 0 {
				if !strings.Contains(host, "]:") && strings.Count(host, ":") != 1 {
					host += ":80"
				}
				s, err := c.retrip.HostState(host)
				if err != nil {
					w.breaks("P15", "t%d: the state of %s: %v", c.number, host, err)
				}
				w.plausible(c, s)
			}
		})
	}
	requests.Wait()
}

// notHosts are no hosts as HostState and PolicyFor expect them.
var notHosts = []string{
	"", ":80", "s0.test", "http://s0.test:80", "*.test:80", "::1", "[::1", "[::1]", "[s0.test]:80", "s0.test:http", "s0.test:99999", "s0.test:0x50",
	"a b:80", "s0.test:80/path", "user@s0.test:80", "s0\x00.test:80", "s0.test:-1",
}

// mistakes are changes that make a policy invalid.
var mistakes = []func(*retrip.Policy){
	func(p *retrip.Policy) { p.MaxAttempts = -7 },
	func(p *retrip.Policy) { p.Backoff.Base = -5 },
	func(p *retrip.Policy) { p.Backoff.Cap = -5 },
	func(p *retrip.Policy) { p.Backoff.ThrottleBase = -5 },
	func(p *retrip.Policy) { p.Backoff.Jitter = 99 },
	func(p *retrip.Policy) { p.Deadline = -5 },
	func(p *retrip.Policy) { p.AttemptTimeout = -5 },
	func(p *retrip.Policy) { p.MaxWait = -5 },
	func(p *retrip.Policy) { p.WholeBody = -7 },
	func(p *retrip.Policy) { p.BodyIdleTimeout = -5 },
	func(p *retrip.Policy) { p.RetryOn = []int{42} },
	func(p *retrip.Policy) { p.FailOn = []int{1000} },
	func(p *retrip.Policy) { p.RetryOn, p.FailOn = []int{503}, []int{503} },
	func(p *retrip.Policy) { p.IdempotentMethods = []string{"A B"} },
	func(p *retrip.Policy) { p.RetryHeader = "A B" },
	func(p *retrip.Policy) { p.Dialects = []string{"latin"} },
	func(p *retrip.Policy) { p.Budget = -7 },
	func(p *retrip.Policy) { p.Budget = math.NaN() },
	func(p *retrip.Policy) { p.Budget = math.Inf(1) },
	func(p *retrip.Policy) { p.Breaker.Ratio = 7 },
	func(p *retrip.Policy) { p.Breaker.Ratio = math.NaN() },
	func(p *retrip.Policy) { p.Breaker.OpenFor = -5 },
	func(p *retrip.Policy) { p.Breaker.MinVolume = -7 },
	func(p *retrip.Policy) { p.FleetBudget = -7 },
	func(p *retrip.Policy) { p.Hedge = 7 },
	func(p *retrip.Policy) { p.Hedge = math.NaN() },
	func(p *retrip.Policy) { p.Gate.Enabled = 7 },
	func(p *retrip.Policy) { p.Resume = -5 },
	func(p *retrip.Policy) { p.Unprocessed = []int{200} },
	func(p *retrip.Policy) { p.MaxAttempts = retrip.Off },
	func(p *retrip.Policy) { p.RetryHeader = "Content-Length" },
}

// notPatterns are no patterns of hosts.
var notPatterns = []string{"", "*", "*.", "a b", "http://s0.test", "s0.test:99999", "s*.test", "*.*.test", "[::1", "s0.test/path", "::1"}

// mistakes sets invalid policies, and loads policies that somebody has misspelled. The
// policies in force mustn't change.
func (c *client) mistakes(p Policies, x *stream) {
	w := c.w
	before, err := c.retrip.PolicyFor("s0.test:80")
	must(err)
	policy, hosts := w.policyOf(p.Default), w.hostsOf(p.Hosts)
	n := int(x.next() % uint64(len(mistakes)))
	wrong := policy
	mistakes[n](&wrong)
	if c.retrip.SetPolicies(wrong, hosts) == nil {
		w.breaks("policies", "mistake %d is accepted", n)
	}
	some := w.hostsOf(p.Hosts)
	some["s1.test"] = wrong
	if c.retrip.SetPolicies(policy, some) == nil {
		w.breaks("policies", "mistake %d is accepted for a host", n)
	}
	pattern := notPatterns[x.next()%uint64(len(notPatterns))]
	hosts[pattern] = retrip.Policy{MaxAttempts: 2}
	if c.retrip.SetPolicies(policy, hosts) == nil {
		w.breaks("policies", "the pattern %q is accepted", pattern)
	}
	// Functions aren't comparable.
	same := func(p retrip.Policy) retrip.Policy {
		p.Classify, p.Idempotent, p.Gate.Key = nil, nil, nil
		return p
	}
	if after, err := c.retrip.PolicyFor("s0.test:80"); err != nil || !reflect.DeepEqual(same(before), same(after)) {
		w.breaks("policies", "a refused policy has changed %v into %v, %v", before, after, err)
	}
	for range 6 {
		host := notHosts[x.next()%uint64(len(notHosts))]
		_, e1 := c.retrip.HostState(host)
		_, e2 := c.retrip.PolicyFor(host)
		if e1 == nil || e2 == nil {
			w.breaks("P15", "%q is accepted as a host", host)
		}
		w.misspell(p, x)
	}
}

// values are what somebody may write into a file of policies.
var values = []string{
	`null`, `true`, `-1`, `0`, `1`, `1.5`, `1e400`, `1e18`, `""`, `"off"`, `"on"`, `"1s"`, `"-1s"`, `"1"`, `"9999999h"`, `"NaN"`, `[]`, `[429]`, `[42]`, `["POST", "A B"]`, `["x", 1, null]`,
	`{}`, `{"x": 1}`, `{"size": "off", "shared": 3}`, `{"ratio": 2}`, `{"base": "1s", "cap": "1ms"}`, `[[`, `"`, `nul`, `{"size": 1, "size": 2}`, `{"enabled": "on"}`, `"full"`, `"é\ud800"`,
}

// humps are where a name of Go has an underscore in JSON.
var humps = regexp.MustCompile(`([a-z])([A-Z])`)

// misspell loads policies of which a part is replaced, and checks that what is accepted
// can be written and loaded again.
func (w *world) misspell(p Policies, x *stream) {
	text := w.file(p.Default.Policy, p.policies())
	var all map[string]json.RawMessage
	must(json.Unmarshal(text, &all))
	fields := reflect.TypeFor[retrip.Policy]()
	name := fields.Field(int(x.next() % uint64(fields.NumField()))).Name
	key := strings.ToLower(humps.ReplaceAllString(name, "${1}_$2"))
	value := values[x.next()%uint64(len(values))]
	in, b := slices.Sorted(maps.Keys(all)), new(bytes.Buffer)
	b.WriteString("{\n")
	if x.next()%2 == 0 {
		fmt.Fprintf(b, "  %q: %s", key, value)
	} else {
		fmt.Fprintf(b, "  \"hosts\": {\"*.test\": {%q: %s}}", key, value)
	}
	for _, k := range in {
		if k != key && k != "hosts" && x.next()%4 > 0 {
			fmt.Fprintf(b, ",\n  %q: %s", k, all[k])
		}
	}
	b.WriteString("\n}\n")
	text = b.Bytes()
	if x.next()%8 == 0 {
		text = text[:x.next()%uint64(len(text))]
	}
	policy, hosts, err := retrip.LoadPolicies(bytes.NewReader(text))
	if err != nil {
		if !strings.Contains(err.Error(), ":") {
			w.breaks("policies", "an error that says little: %v", err)
		}
		var one retrip.Policy
		_ = json.Unmarshal(text, &one)
		return
	}
	again := w.file(policy, hosts)
	policy, hosts, err = retrip.LoadPolicies(bytes.NewReader(again))
	if err != nil || !bytes.Equal(again, w.file(policy, hosts)) {
		w.breaks("policies", "policies don't survive JSON: %v: %s, %s", err, text, again)
	}
}
