// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package statuspage

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/control"
	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/lend"
)

// Control returns a handler by which people intervene by hand in the Transports under
// their names in the map. It answers GET and HEAD with a page of forms, and POST does
// what the fields of a form, in the body of the request, say:
//
//   - action: "hold" fails every request to a host at once, also those that wait at its
//     gates, and allows no retry; "stop" allows no retry, but first attempts; "undo" ends a
//     hold or a stop; "forget" gives a host its tokens back, ends its pause, closes its
//     breaker and opens its gates, so that the requests there go at once.
//   - host: as "example.com:443", for hold, forget and the undo of a hold.
//   - policy: a pattern in Transport.Hosts or "default", for stop and its undo; if
//     empty, they apply to all requests.
//   - for: how long a hold or a stop lasts, such as "10m", at most 24h. A new one
//     replaces an earlier one of the same host or policy.
//   - who: the name of the person, for the log of the Transport and for the pages.
//   - transport: a name in the map; if empty, all Transports.
//
// Requests that a hold or a stop ends have the reason by_hand. Attempts in flight go on,
// and a request that waits before a retry ends with its wait.
// A forbidden field or value is answered with status 400 and an error that names it.
// With format=json in the query, or as for [Handler], the answer is JSON.
//
// Control refuses requests that other sites make browsers send, as
// [http.CrossOriginProtection] does, but lets in everybody who reaches it: put
// authentication before it. Nothing is stored: a new process begins without holds and
// stops. The map must not be changed after the call. The handler is safe for concurrent
// use.
func Control(transports map[string]*retrip.Transport) http.Handler {
	return http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var results []result
		code := http.StatusOK
		switch r.Method {
		case http.MethodGet, http.MethodHead:
		case http.MethodPost:
			results, code = command(transports, w, r)
		default:
			refuse(w, "GET, HEAD, POST", "use GET for the forms, and POST to do something")
			return
		}
		respond(w, r, code, controlPage, consoleOf(transports, results))
	}))
}

const maxForm = 16 << 10 // bytes

// console is the content of the page of forms, and the JSON that programs get.
type console struct {
	At         time.Time     `json:"at"`
	Results    []result      `json:"results,omitempty"` // of the command
	Transports []controlled  `json:"transports"`
	Choices    []string      `json:"-"` // hosts and policies to choose from
	Policies   []string      `json:"-"`
	MostFor    time.Duration `json:"-"`
}

type controlled struct {
	Name   string        `json:"name"`
	ByHand []orderStatus `json:"by_hand"`
}

// result is what became of a command in one Transport. Without a Transport, the command
// itself is wrong.
type result struct {
	Transport string `json:"transport,omitempty"`
	Done      string `json:"done,omitempty"`
	Error     string `json:"error,omitempty"`
}

// orderStatus is an order that holds.
type orderStatus struct {
	What   string `json:"what"`
	Host   string `json:"host,omitempty"`
	Policy string `json:"policy,omitempty"`
	Who    string `json:"who"`
	Given  string `json:"given_ago"`
	Left   string `json:"left"`
}

// ordersOf returns the orders that hold in t.
func ordersOf(t *retrip.Transport) []orderStatus {
	orders, now := lend.Control(t).Orders()
	list := make([]orderStatus, 0, len(orders))
	for _, o := range orders {
		s := orderStatus{What: shortened(o.String()), Policy: o.Policy, Who: o.Who, Given: short(now - o.Given), Left: short(o.Until - now)}
		if o.Host != (hostkey.Key{}) {
			s.Host = o.Host.String()
		}
		list = append(list, s)
	}
	return list
}

func consoleOf(transports map[string]*retrip.Transport, results []result) *console {
	c := &console{At: time.Now().UTC().Truncate(time.Second), Results: results, Transports: []controlled{}, MostFor: control.MostFor}
	const most = 200
	for _, name := range slices.Sorted(maps.Keys(transports)) {
		t := transports[name]
		if t == nil {
			continue
		}
		c.Transports = append(c.Transports, controlled{name, ordersOf(t)})
		for _, h := range t.HostStates() {
			if len(c.Choices) < most && len(h.Host) <= maxName {
				c.Choices = append(c.Choices, h.Host)
			}
		}
		_, hosts, err := t.Policies()
		if err != nil {
			continue
		}
		c.Policies = append(c.Policies, "default")
		for _, pattern := range slices.Sorted(maps.Keys(hosts)) {
			if len(c.Policies) < most && len(pattern) <= maxName {
				c.Policies = append(c.Policies, hostkey.Lower(pattern))
			}
		}
	}
	slices.Sort(c.Choices)
	slices.Sort(c.Policies)
	c.Choices, c.Policies = slices.Compact(c.Choices), slices.Compact(c.Policies)
	return c
}

// actions are the fields that each action needs, besides those of every action.
var actions = map[string]struct{ needs, allows []string }{
	"hold":   {needs: []string{"host", "for"}},
	"stop":   {needs: []string{"for"}, allows: []string{"policy"}},
	"forget": {needs: []string{"host"}},
	"undo":   {allows: []string{"host", "policy"}},
}

// command does what the form in the body of r says, and returns the status of the
// answer.
func command(transports map[string]*retrip.Transport, w http.ResponseWriter, r *http.Request) (results []result, code int) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	code = http.StatusBadRequest
	var large *http.MaxBytesError
	err := r.ParseForm()
	if errors.As(err, &large) {
		code = http.StatusRequestEntityTooLarge
	}
	var do func(context.Context, lend.Controls) (string, error)
	if err == nil {
		do, err = parse(r.PostForm)
	}
	only := r.PostForm.Get("transport")
	if err == nil && only != "" && transports[only] == nil {
		err = fmt.Errorf("transport is %q: there is none of this name", shortened(only))
	}
	if err != nil {
		return []result{{Error: redacted(err.Error())}}, code
	}
	for _, name := range slices.Sorted(maps.Keys(transports)) {
		t := transports[name]
		if t == nil || only != "" && only != name {
			continue
		}
		done, err := do(r.Context(), lend.Control(t))
		if err != nil {
			results = append(results, result{Transport: name, Error: redacted(err.Error())})
			continue
		}
		results = append(results, result{Transport: name, Done: done})
		code = http.StatusOK
	}
	return results, code
}

// parse returns what a form asks for. The error names the field that is wrong.
func parse(form url.Values) (do func(context.Context, lend.Controls) (done string, err error), err error) {
	action := form.Get("action")
	rule, ok := actions[action]
	if !ok {
		return nil, fmt.Errorf("action is %q: it must be hold, stop, undo or forget", shortened(action))
	}
	for _, name := range slices.Sorted(maps.Keys(form)) {
		switch {
		case len(form[name]) > 1:
			return nil, fmt.Errorf("%s is given %d times", shortened(name), len(form[name]))
		case form.Get(name) == "" || slices.Contains([]string{"action", "transport", "who"}, name):
		case !slices.Contains(rule.needs, name) && !slices.Contains(rule.allows, name):
			return nil, fmt.Errorf("%s is %q: the action %s doesn't take it", shortened(name), shortened(form.Get(name)), action)
		}
	}
	for _, name := range rule.needs {
		if form.Get(name) == "" {
			return nil, fmt.Errorf("%s is empty: the action %s needs it", name, action)
		}
	}
	host, policy, who := form.Get("host"), form.Get("policy"), strings.TrimSpace(form.Get("who"))
	subject := control.Subject{Policy: hostkey.Lower(policy)}
	for _, name := range []string{"host", "policy"} {
		if n := len(form.Get(name)); n > maxName {
			return nil, fmt.Errorf("%s has %d bytes: it must have at most %d", name, n, maxName)
		}
	}
	switch {
	case host != "" && policy != "":
		return nil, fmt.Errorf("host is %q and policy is %q: only one may be set", shortened(host), policy)
	case host != "":
		if subject.Host, err = hostkey.Parse(strings.TrimSpace(host)); err != nil {
			return nil, fmt.Errorf("host: %w", err)
		}
	}
	var d time.Duration
	if text := form.Get("for"); text != "" {
		if d, err = time.ParseDuration(strings.TrimSpace(text)); err != nil {
			return nil, fmt.Errorf("for is %q: it must be a duration such as 10m", shortened(text))
		}
		if _, err := control.Give(subject, who, d, 0); err != nil {
			return nil, err
		}
	}
	if err := control.CheckWho(who); err != nil {
		return nil, err
	}
	return func(ctx context.Context, c lend.Controls) (string, error) {
		switch action {
		case "undo":
			return "allows " + subject.String() + " again", c.Undo(ctx, subject, who)
		case "forget":
			return "forgot " + subject.Host.String(), c.Forget(ctx, subject, who)
		}
		return fmt.Sprintf("forbids %s for %v", subject, d), c.Give(ctx, subject, who, d)
	}, nil
}
