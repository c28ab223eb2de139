// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"maps"
	"net/http"

	"github.com/retrip/retrip"
)

// RetrySwitch returns a handler with which people stop all retries and hedges of t,
// with a POST to /retries/off, and allow them again, with one to /retries/on. First
// attempts go on, and so do requests with a MaxAttempts of their own, by WithPolicy.
// Put your authentication before it.
func RetrySwitch(t *retrip.Transport) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /retries/on", func(w http.ResponseWriter, _ *http.Request) {
		set(w, t, t.Policy, t.Hosts)
	})
	mux.HandleFunc("POST /retries/off", func(w http.ResponseWriter, _ *http.Request) {
		policy, hosts := t.Policy, maps.Clone(t.Hosts)
		policy.MaxAttempts = 1
		for pattern, p := range hosts {
			p.MaxAttempts = 1
			hosts[pattern] = p
		}
		set(w, t, policy, hosts)
	})
	return http.NewCrossOriginProtection().Handler(mux)
}

func set(w http.ResponseWriter, t *retrip.Transport, policy retrip.Policy, hosts map[string]retrip.Policy) {
	if err := t.SetPolicies(policy, hosts); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
