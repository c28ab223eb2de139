// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/statuspage"
)

// crowd is the pattern of more hosts in trouble than a Transport has places for.
const crowd = "*.crowd.internal"

// outages are hosts that fail completely, each in a way in which retrip holds nothing back
// from it.
var outages = []struct {
	what, method, host string
	policy             retrip.Policy
}{
	{"a POST that may have been processed", http.MethodPost, "orders.internal", retrip.Policy{}},
	{"a policy of one attempt", http.MethodGet, "once.internal", retrip.Policy{MaxAttempts: 1}},
	{"a policy without a budget", http.MethodGet, "unlimited.internal", retrip.Policy{Budget: retrip.Unlimited}},
	{"refused dials and one attempt", http.MethodGet, "refused.internal", retrip.Policy{MaxAttempts: 1}},
	{"retries that the fleet's account refuses", http.MethodGet, "fleet.internal", retrip.Policy{Budget: retrip.Budget{Size: 1e6}, FleetBudget: 500}},
	{"a host without a place among 4096 in trouble", http.MethodGet, "last.crowd.internal", retrip.Policy{}},
}

// tour is a program of its own, whose hosts fail one after the other.
type tour struct {
	transports map[string]*retrip.Transport
	fleet      *retrip.Fleet
	backend    *httptest.Server
	base       *http.Transport
	page       *httptest.Server
}

func newTour() *tour {
	t := &tour{}
	t.backend = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	closed := httptest.NewServer(nil)
	closed.Close()
	t.base = &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		to := t.backend.Listener.Addr()
		if strings.HasPrefix(address, "refused.") {
			to = closed.Listener.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, to.String())
	}}
	t.fleet = retrip.NewFleet(func(context.Context, string, float64, float64) (float64, error) { return 0, nil })
	tour := &retrip.Transport{Base: t.base, Fleet: t.fleet, Hosts: map[string]retrip.Policy{}, Policy: retrip.Policy{FleetBudget: retrip.Off, Backoff: retrip.Backoff{Base: retrip.Off}}}
	crowded := &retrip.Transport{Base: instantly{}, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: retrip.Off}}}
	t.transports = map[string]*retrip.Transport{"tour": tour, "tour among 4096 hosts in trouble": crowded}
	for _, o := range outages {
		tour.Hosts[o.host] = o.policy
	}
	t.page = httptest.NewServer(statuspage.Handler(t.transports))
	return t
}

// instantly is a base that answers 503 without a network.
type instantly struct{}

func (instantly) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

func (t *tour) close() {
	t.page.Close()
	t.backend.Close()
	t.base.CloseIdleConnections()
	_ = t.fleet.Close() // it has no store
}

// run makes each host fail and reports how long the page takes to show it.
func (t *tour) run(ctx context.Context, say func(what, state string, after time.Duration)) error {
	for _, o := range outages {
		name := "tour"
		if strings.HasSuffix(o.host, crowd[1:]) {
			name = "tour among 4096 hosts in trouble"
			for i := range 12_000 {
				if err := t.send(ctx, name, http.MethodGet, fmt.Sprint(i)+crowd[1:]); err != nil {
					return err
				}
			}
		}
		began := time.Now()
		for {
			if err := t.send(ctx, name, o.method, o.host); err != nil {
				return err
			}
			state, err := t.shown(ctx, name, o.host)
			if err != nil {
				return err
			}
			if state != "" {
				say(o.what, state, time.Since(began))
				break
			}
			if !sleep(ctx, 50*time.Millisecond) {
				return ctx.Err()
			}
		}
	}
	return nil
}

// send makes one request through a Transport, however it ends.
func (t *tour) send(ctx context.Context, transport, method, host string) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+host+"/", nil)
	if err != nil {
		return err
	}
	if resp, err := t.transports[transport].RoundTrip(req); err == nil {
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return ctx.Err()
}

// shown returns what the page says of a host that fails, or nothing while it doesn't.
func (t *tour) shown(ctx context.Context, transport, host string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, t.page.URL+"?format=json&host="+host+":80", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var status struct {
		Transports []struct {
			Name    string
			Failing int `json:"hosts_failing"`
		}
		Asked struct {
			Of []struct {
				Transport string
				State     struct {
					Failed     int
					LastStatus int    `json:"last_status"`
					LastError  string `json:"last_error"`
					LastGiveUp string `json:"last_give_up"`
				}
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return "", err
	}
	for i, of := range status.Asked.Of {
		if of.Transport != transport || of.State.Failed == 0 || status.Transports[i].Failing == 0 {
			continue
		}
		last := of.State.LastError
		if of.State.LastStatus > 0 {
			last = fmt.Sprint(of.State.LastStatus)
		}
		return fmt.Sprintf("%d failed, last %s, given up because of %s", of.State.Failed, last, of.State.LastGiveUp), nil
	}
	return "", nil
}
