// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"syscall"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/lab"
)

const (
	// others is how many hosts a Transport calls besides its main host. The
	// number is small enough for each to be called often in a short run.
	others = 16

	// table is the maximum number of hosts in trouble for which a Transport
	// keeps state.
	table = 4096
)

// spread sends most requests to one host and distributes the rest over the
// others.
func spread(p lab.Proto) func(int) string {
	return func(id int) string {
		if id%8 != 0 {
			return p.Scheme() + "://one.test/"
		}
		return fmt.Sprintf("%s://host-%d.test/", p.Scheme(), id/8%others)
	}
}

// credit is how many tokens a success without a retry pays back.
const credit = 0.2

// heal makes successful requests to each host for which t has state, until they
// have paid back the missing tokens. It returns the hosts for which t still has
// state afterwards. There must be no more faults.
func heal(t *retrip.Transport, p lab.Proto) ([]retrip.HostState, error) {
	for _, s := range troubled(t) {
		for range int(math.Ceil((s.Size - s.Tokens) / credit)) {
			req, err := http.NewRequest(http.MethodGet, p.Scheme()+"://"+s.Host, nil)
			if err != nil {
				return nil, err
			}
			resp, err := t.RoundTrip(req)
			if err != nil {
				return nil, fmt.Errorf("without faults: %w", err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}
	return troubled(t), nil
}

// troubled returns the states of the hosts in trouble, without those that are only known
// for requests that failed.
func troubled(t *retrip.Transport) []retrip.HostState {
	return slices.DeleteFunc(t.HostStates(), func(s retrip.HostState) bool { return !s.Held })
}

// strangers is a Transport that calls many hosts once each, all of which are
// down. None of them heals, so the Transport keeps the state of each until
// another host needs its place.
type strangers struct {
	retrip.Transport
	called int
}

func newStrangers() *strangers {
	return &strangers{Transport: retrip.Transport{
		Base:   down{},
		Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: 1, Cap: 1}},
	}}
}

// call calls n new hosts.
func (s *strangers) call(n int) error {
	for range n {
		s.called++
		req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://stranger-%d.test/", s.called), nil)
		if err != nil {
			return err
		}
		if _, err := s.RoundTrip(req); !errors.Is(err, syscall.ECONNREFUSED) {
			return fmt.Errorf("a host that is down: %w", err)
		}
	}
	return nil
}

// down is a base whose attempts all fail to connect.
type down struct{}

func (down) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}
