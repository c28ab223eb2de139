// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/lab"
)

func TestSpread_CallsNoMoreHostsThanAreChecked(t *testing.T) {
	hosts := map[string]bool{}
	url := spread(lab.H2C)
	for id := range 10_000 {
		hosts[url(id)] = true
	}
	assert.Len(t, hosts, others+1)
}

// The hosts called before the first sample fill the table. Those after it show
// whether the table keeps to its size.
//
//retrip:promise P15
func TestStrangers_FillTheTable(t *testing.T) {
	s := newStrangers()
	require.NoError(t, s.call(3*table))
	for range 2 {
		states := troubled(&s.Transport)
		assert.Len(t, states, table+1)
		assert.Equal(t, "others", states[table].Host, "the entries of hosts without a place")
		require.NoError(t, s.call(table))
	}
}

// ailing is a base whose hosts are down until they are marked well.
type ailing struct {
	well bool
	sent map[string]int
	hook func() // called when a request finds its host down
}

func (a *ailing) RoundTrip(req *http.Request) (*http.Response, error) {
	if !a.well {
		a.hook()
		return down{}.RoundTrip(req)
	}
	a.sent[req.URL.Host]++
	return &http.Response{StatusCode: http.StatusBadRequest, Body: http.NoBody, Request: req}, nil
}

// heal sends each host exactly what its missing tokens require, and then has no
// state left.
func TestHeal(t *testing.T) {
	base := &ailing{sent: map[string]int{}, hook: func() {}}
	transport := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: 1, Cap: 1}}}
	for _, host := range []string{"a", "b", "b"} {
		req, err := http.NewRequest(http.MethodGet, "http://"+host, nil)
		require.NoError(t, err)
		_, err = transport.RoundTrip(req)
		require.Error(t, err)
	}
	base.well = true
	left, err := heal(transport, lab.HTTP1)
	require.NoError(t, err)
	assert.Empty(t, left)
	assert.Equal(t, map[string]int{"a:80": 3, "b:80": 5}, base.sent)
}

// heal reports a host that has all its tokens back but is still in use, here by
// a request that has not ended.
func TestHeal_SeesHeldHosts(t *testing.T) {
	base := &ailing{sent: map[string]int{}}
	transport := &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 3, Backoff: retrip.Backoff{Base: 1, Cap: 1}}}
	attempts := 0
	var left []retrip.HostState
	base.hook = func() {
		if attempts++; attempts == 2 {
			base.well = true
			var err error
			left, err = heal(transport, lab.HTTP1)
			assert.NoError(t, err)
			base.well = false
		}
	}
	req, err := http.NewRequest(http.MethodGet, "http://a", nil)
	require.NoError(t, err)
	_, err = transport.RoundTrip(req)
	require.Error(t, err)
	require.Len(t, left, 1)
	assert.Equal(t, left[0].Size, left[0].Tokens)
}
