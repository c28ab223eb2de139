// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
)

// hush begins all secrets: no log may show it.
const hush = "hush"

var (
	errOwn   = errors.New("the caller's own body fails")
	errCause = errors.New("the caller's cause")

	errRefuses = errors.New("the caller refuses the server")

	errPanicked = errors.New("RoundTrip panicked")
)

// client is a Transport and what is on and below it.
type client struct {
	w      *world
	number int
	plan   *Transport
	base   *http.Transport
	retrip *retrip.Transport
	http   *http.Client

	mu    sync.Mutex
	swaps []Policies // in order

	forgot bool // hosts may have lost their place

	strangers int                // requests to hosts that don't exist
	strange   map[string]float64 // why they were given up
}

func (w *world) newClient(number int, plan *Transport) *client {
	c := &client{w: w, number: number, plan: plan, swaps: []Policies{plan.Policies}}
	var p http.Protocols
	p.SetHTTP1(!w.plan.H2C)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(w.plan.H2C)
	c.base = &http.Transport{
		DialContext:     w.dial,
		Protocols:       &p,
		TLSClientConfig: &tls.Config{RootCAs: memhttp.Roots(), CurvePreferences: []tls.CurveID{tls.X25519}, ClientSessionCache: tls.NewLRUClientSessionCache(8)},
	}
	c.retrip = &retrip.Transport{Base: c.base, Policy: w.policyOf(plan.Default), Hosts: w.hostsOf(plan.Hosts), Metrics: w.metrics[plan.Metrics], Trace: c.hooks()}
	if plan.Bare {
		c.retrip.Trace = nil
	}
	if plan.Verifies {
		c.base.TLSClientConfig.VerifyConnection = func(tls.ConnectionState) error {
			if plan.Refuses && !w.calm.Load() {
				return errRefuses
			}
			return nil
		}
	}
	if plan.Wrapped {
		c.retrip.Base = &wrapper{c}
	}
	if plan.Fleet {
		c.retrip.Fleet = w.fleet
	}
	if plan.Logger {
		c.retrip.Logger = slog.New(slog.NewTextHandler(w.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	c.http = &http.Client{Transport: &outer{c}, Timeout: plan.Client}
	return c
}

// policyOf returns the policy that p stands for.
func (w *world) policyOf(p Policy) retrip.Policy {
	q := p.Policy
	if p.Keyed {
		q.Gate.Key = func(r *http.Request) string { AtKey.panics(r); return r.Header.Get("World-Tenant") }
	}
	switch p.Classify {
	case RetriesTeas:
		q.Classify = classify(func(resp *http.Response) retrip.Verdict { return teas(resp, retrip.Retryable) })
	case ThrottlesTeas:
		q.Classify = classify(func(resp *http.Response) retrip.Verdict { return teas(resp, retrip.Throttled) })
	case FinalTeas:
		q.Classify = classify(func(resp *http.Response) retrip.Verdict { return teas(resp, retrip.Final) })
	case Polls:
		q.Classify = classify(func(resp *http.Response) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusAccepted {
				return retrip.Retryable
			}
			return retrip.ByRule
		})
	case PeeksAtStart:
		q.Classify = classify(func(resp *http.Response) retrip.Verdict {
			if resp != nil && resp.StatusCode == http.StatusOK {
				_, _ = retrip.Peek(resp, 100)
			}
			return retrip.ByRule
		})
	}
	switch p.Idempotent {
	case NeverIdempotent:
		q.Idempotent = func(r *http.Request) bool { AtIdempotent.panics(r); return false }
	case ByHeader:
		q.Idempotent = func(r *http.Request) bool { AtIdempotent.panics(r); return r.Header.Get("World-Safe") != "" }
	}
	return q
}

func classify(f func(*http.Response) retrip.Verdict) func(*http.Request, *http.Response, error) retrip.Verdict {
	return func(r *http.Request, resp *http.Response, _ error) retrip.Verdict {
		AtClassify.panics(r)
		return f(resp)
	}
}

func teas(resp *http.Response, verdict retrip.Verdict) retrip.Verdict {
	if resp != nil && (resp.StatusCode == http.StatusTeapot || verdict == retrip.Final && resp.Header.Get("World-Final") != "") {
		return verdict
	}
	return retrip.ByRule
}

func (w *world) hostsOf(plan map[string]Policy) map[string]retrip.Policy {
	hosts := map[string]retrip.Policy{}
	for pattern, p := range plan {
		hosts[pattern] = w.policyOf(p)
	}
	return hosts
}

// aPanic is what hooks panic with.
const aPanic = "a hook panics"
