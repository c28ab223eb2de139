// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"cmp"
	"encoding/json"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/budget"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/redact"
)

// Limits, so that many hosts or patterns can't make the page too large for a
// browser.
const (
	maxHosts    = 1000 // of one Transport
	maxPolicies = 1000 // of one Transport
	maxName     = 300  // bytes of a host's name
)

// status is the content of the page, and the JSON that programs get.
type status struct {
	At         time.Time         `json:"at"`
	Transports []transportStatus `json:"transports"`
	Asked      *asked            `json:"asked,omitempty"`
}

type transportStatus struct {
	Name  string `json:"name"`
	Error string `json:"error,omitempty"` // why its policies are invalid

	Failing   int                `json:"hosts_failing"`   // at which requests fail
	Recovered int                `json:"hosts_recovered"` // at which requests failed in the last minutes
	Canceled  int                `json:"hosts_canceled"`  // at which callers only canceled requests
	Retried   int                `json:"hosts_retried"`   // at which only attempts failed in the last minutes
	InTrouble int                `json:"hosts_in_trouble"`
	Open      int                `json:"breakers_open"`
	Paused    int                `json:"hosts_paused"`
	Exhausted int                `json:"budgets_exhausted"`
	Waiting   int                `json:"waiting_at_gates"`
	Listed    int                `json:"hosts_listed"`
	Hosts     []retrip.HostState `json:"hosts"` // about which there is something to say, the worst first, at most maxHosts

	Policies []policyStatus `json:"policies"` // the default first, at most maxPolicies
	Patterns int            `json:"patterns"`
}

type policyStatus struct {
	Pattern string `json:"pattern"` // or "default"
	policy         // the default with inherited values filled in; of a host, the fields that it sets
}

type policy struct {
	Policy json.RawMessage `json:"policy,omitempty"`
	Code   []string        `json:"code,omitempty"` // fields that are Go functions
}

// Settings returns the fields of p that are set, by their names in JSON.
func (p policy) Settings() (list []setting) {
	var add func(prefix string, fields json.RawMessage)
	add = func(prefix string, fields json.RawMessage) {
		var values map[string]json.RawMessage
		if json.Unmarshal(fields, &values) != nil {
			value := strings.NewReplacer(`"`, "", "[", "", "]", "", ",", ", ").Replace(string(fields))
			list = append(list, setting{prefix, cmp.Or(value, "none")})
			return
		}
		for _, name := range slices.Sorted(maps.Keys(values)) {
			add(strings.TrimPrefix(prefix+"."+name, "."), values[name])
		}
	}
	add("", p.Policy)
	for _, name := range p.Code {
		list = append(list, setting{name, "a Go function"})
	}
	return list
}

type setting struct{ Name, Value string }

// asked describes the one host that the request asked for.
type asked struct {
	Host  string      `json:"host"`
	Error string      `json:"error,omitempty"`
	Of    []hostAsked `json:"of,omitempty"`
}

type hostAsked struct {
	Transport string           `json:"transport"`
	State     retrip.HostState `json:"state"`
	policy
}

// statusOf returns the status of transports, and that of one host if host isn't
// empty.
func statusOf(transports map[string]*retrip.Transport, host string) *status {
	s := &status{At: time.Now().UTC().Truncate(time.Second), Transports: []transportStatus{}}
	if host = strings.TrimSpace(host); host != "" {
		s.Asked = &asked{Host: shortened(redact.Name(host))}
	}
	for _, name := range slices.Sorted(maps.Keys(transports)) {
		t := transports[name]
		if t == nil {
			continue
		}
		s.Transports = append(s.Transports, lookAt(name, t))
		if s.Asked == nil {
			continue
		}
		found, err := lookUp(t, host)
		if err != nil {
			s.Asked.Error = shortened(err.Error())
		}
		for _, state := range found {
			one := hostAsked{Transport: name, State: state}
			if p, err := t.PolicyFor(state.Host); err == nil { // else the page lists it under its pattern
				one.policy = inWords(p)
			}
			one.State.Host = shortened(state.Host)
			s.Asked.Of = append(s.Asked.Of, one)
		}
	}
	return s
}

// lookUp returns the states of the hosts that the text means: one that the page shows by
// this text, those of this name that it shows with any port, or else the host itself. Its
// port is that of https if the text has none.
func lookUp(t *retrip.Transport, text string) (found []retrip.HostState, err error) {
	for _, h := range t.HostStates() {
		name, _, _ := net.SplitHostPort(h.Host)
		if shortened(h.Host) == text || strings.EqualFold(name, strings.Trim(text, "[]")) {
			found = append(found, h)
		}
	}
	if found != nil {
		return found[:min(len(found), maxHosts)], nil
	}
	state, err := t.HostState(text)
	if err != nil {
		var noPort error
		if state, noPort = t.HostState(net.JoinHostPort(strings.Trim(text, "[]"), "443")); noPort != nil {
			return nil, err
		}
	}
	return []retrip.HostState{state}, nil
}

func lookAt(name string, t *retrip.Transport) transportStatus {
	s := transportStatus{Name: name, Hosts: []retrip.HostState{}, Policies: []policyStatus{}}
	p, hosts, err := t.Policies()
	if err != nil {
		s.Error = err.Error()
		return s
	}
	for _, h := range t.HostStates() {
		held := open(h) || h.PausedFor > 0 || h.Waiting > 0 || exhausted(h) || h.StoppedRoutes != ""
		for count, is := range map[*int]bool{
			&s.Failing:   failing(h),
			&s.Recovered: h.Recovered,
			&s.Canceled:  h.Failed == 0 && h.Canceled > 0,
			&s.Retried:   !held && retried(h),
			&s.InTrouble: h.Held,
			&s.Open:      open(h),
			&s.Paused:    h.PausedFor > 0,
			&s.Exhausted: exhausted(h),
		} {
			if is {
				*count++
			}
		}
		s.Waiting += h.Waiting
		if held || h.Failed > 0 || h.Canceled > 0 || retried(h) {
			s.Hosts = append(s.Hosts, h)
		}
	}
	s.Listed = len(s.Hosts)
	slices.SortStableFunc(s.Hosts, func(a, b retrip.HostState) int {
		return cmp.Or(cmp.Compare(severity(b), severity(a)), cmp.Compare(b.Failed, a.Failed))
	})
	s.Hosts = s.Hosts[:min(len(s.Hosts), maxHosts)]
	for i := range s.Hosts {
		s.Hosts[i].Host = shortened(s.Hosts[i].Host)
	}

	s.Patterns = len(hosts)
	if resolved, err := (&retrip.Transport{Policy: p}).PolicyFor("any:80"); err == nil {
		p = resolved
	}
	s.Policies = append(s.Policies, policyStatus{"default", inWords(p)})
	patterns := slices.Sorted(maps.Keys(hosts))
	for _, pattern := range patterns[:min(len(patterns), maxPolicies-1)] {
		s.Policies = append(s.Policies, policyStatus{shortened(pattern), inWords(hosts[pattern])})
	}
	return s
}

// severity orders hosts: those that fail come first, and trouble that stops requests
// comes before trouble that stops retries.
func severity(s retrip.HostState) (n int) {
	for _, trouble := range []bool{failing(s), open(s), s.PausedFor > 0, s.Waiting > 0, exhausted(s), s.StoppedRoutes != "", s.Failed > 0} {
		n *= 2
		if trouble {
			n++
		}
	}
	return n
}

func failing(s retrip.HostState) bool { return s.Failed > 0 && !s.Recovered }

func open(s retrip.HostState) bool { return s.Breaker != retrip.BreakerClosed }

// retried reports whether only attempts at the host have failed of late.
func retried(s retrip.HostState) bool {
	return s.Failed == 0 && s.Canceled == 0 && s.LastFailure != "" && s.FailedAgo <= host.FailureWindow
}

// inARow reports whether so many retries in a row have failed that retrip makes
// none until a request succeeds.
func inARow(s retrip.HostState) bool {
	return budget.Rule{Size: budget.Micro(s.Size)}.Stopped(uint32(s.FailedRetries))
}

// exhausted reports whether the budgets of s allow no further retry.
func exhausted(s retrip.HostState) bool {
	const cost = float64(budget.RetryCost) / budget.Token // of a request's first retry, at least
	return s.Size > 0 && s.Tokens < cost || inARow(s)
}

// inWords returns p as JSON, and the names of its fields that are Go functions.
func inWords(p retrip.Policy) (words policy) {
	for name, set := range map[string]bool{"Gate.Key": p.Gate.Key != nil, "Classify": p.Classify != nil, "Idempotent": p.Idempotent != nil} {
		if set {
			words.Code = append(words.Code, name)
		}
	}
	slices.Sort(words.Code)
	p.Gate.Key, p.Classify, p.Idempotent = nil, nil, nil
	data, err := json.Marshal(p)
	if err != nil {
		data, _ = json.Marshal(err.Error())
	}
	words.Policy = data
	return words
}

// shortened limits the length of a name that comes from outside.
func shortened(name string) string { return redact.Short(name, maxName) }
