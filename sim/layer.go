// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/internal/decide"
	"github.com/retrip/retrip/internal/hedge"
	"github.com/retrip/retrip/internal/host"
	"github.com/retrip/retrip/internal/lend"
)

// layer is one level of senders: the clients, or a service in front of the
// backend.
type layer struct {
	rules    *decide.Rules
	policy   retrip.Policy // resolved
	draw     func(*source, retrip.Policy, int) time.Duration
	timeout  time.Duration
	limit    limiter
	asks     bool       // a breaker or gate decides about first attempts
	gated    bool       // by a gate
	hedge    hedge.Rule // no hedges if its Share is 0
	hedging  Hedging
	detached bool  // continues after its caller has gone
	shared   bool  // any replica serves any caller
	first    int32 // index of its first host
	size     int32

	requests, attempts int64
	seconds            []int32       // counted only where there are services
	refusal            retrip.Reason // of limit
	account            *accounts     // limit, if it is one

	deadEach uint64 // share of dead clients, in 2^-32
}

// build creates the layers of a run and their hosts.
func (r *run) build() error {
	all := append([]Service{{Policy: &r.Policy, Timeout: r.Fleet.Timeout}}, r.Fleet.Services...)
	r.layers = make([]layer, len(all))
	asks, hedges := false, false
	var hosts int
	size := r.Fleet.Clients
	for i, service := range all {
		policy := &r.Policy
		if service.Policy != nil {
			policy = service.Policy
		}
		retry := policy.Retry
		if retry.AttemptTimeout == 0 {
			// The budget depends on the attempt timeout.
			retry.AttemptTimeout = service.Timeout
		}
		rules, resolved, err := lend.Rules(retry)
		if err != nil {
			return err
		}
		l := &r.layers[i]
		l.rules, l.policy, l.draw, l.detached = rules, resolved, policy.draw, service.Detached
		l.timeout = max(0, l.policy.AttemptTimeout)
		if service.Replicas > 0 {
			l.shared, size = true, service.Replicas
		}
		if policy.limit != nil {
			l.limit, l.refusal = policy.limit(size), reasonLimited
		}
		if policy.account {
			l.account = newAccounts(&r.Store, size, r.Seed)
			l.limit, l.refusal = l.account, reasonFleet
		}
		l.asks = asksFirst(l.policy)
		l.gated = l.policy.Gate.Enabled == retrip.On
		asks = asks || l.asks
		if l.policy.MaxAttempts > 1 {
			l.hedge.Share, l.hedging = max(0, l.policy.Hedge), policy.Hedging
		}
		hedges = hedges || l.hedge.Share > 0
		l.first, l.size = int32(hosts), int32(size)
		hosts += size
		if len(all) > 1 {
			l.seconds = make([]int32, len(r.seconds.list))
		}
	}
	r.layers[0].deadEach = uint64(r.Fleet.Dead * (1 << 32))
	r.hosts = make([]host.Record, hosts)
	if asks {
		r.out = make([]int32, hosts)
	}
	if hedges {
		r.hedges = make([]hedge.Host, hosts)
	}
	return nil
}

// member returns the index of the host in l that serves the layer's nth caller.
func (r *run) member(l *layer, n int32) int32 {
	if l.shared {
		return l.first + int32(r.replicas.below(uint64(l.size)))
	}
	return l.first + n
}

// abandon cancels the request that the next service makes for an attempt, if
// there is one.
func (r *run) abandon(i int32) {
	child := r.requests[i].child
	if child == none {
		return
	}
	r.requests[i].child = none
	q := &r.requests[child]
	q.parent = orphan
	if r.layers[q.layer].detached {
		return
	}
	r.abandon(child)
	q = &r.requests[child]
	l := &r.layers[q.layer]
	if l.limit != nil {
		l.limit.canceled(q.host-l.first, &q.paid)
	}
	wakes := l.rules.Return(&r.hosts[q.host], &q.call)
	r.wakeOthers(q.host, wakes)
	r.finish(child, false, retrip.ReasonCanceled)
}

// dead reports whether the network of one of the clients is dead. The dead are
// spread over the fleet, with as many in every part of it.
func (l *layer) dead(host int32) bool {
	return l.deadEach > 0 && uint64(host-l.first+1)*l.deadEach>>32 != uint64(host-l.first)*l.deadEach>>32
}

// finishLayers computes the results of each layer.
func (r *run) finishLayers() {
	for _, l := range r.layers {
		if l.account != nil {
			r.result.StoreOperations += l.account.operations
			r.result.StorePeak = max(r.result.StorePeak, float64(l.account.peak))
		}
	}
	if len(r.layers) == 1 {
		return
	}
	r.result.Layers = make([]LayerResult, len(r.layers))
	for i, l := range r.layers {
		sum := &r.result.Layers[i]
		sum.Requests, sum.Attempts = l.requests, l.attempts
		for _, n := range l.seconds {
			sum.PeakSecond = max(sum.PeakSecond, float64(n))
		}
	}
}
