// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/hostkey"
)

// Hosts are the values of the label host: those of a list, and one for all others.
type Hosts struct {
	index map[string]int // by name, or by name and port
	names []string       // the last one is that of all others
}

// NewHosts returns the values for a list of names, each with a port or without. It
// returns nil if the list is nil, and an error that says what is wrong with the others.
func NewHosts(list []string) (*Hosts, error) {
	if list == nil {
		return nil, nil
	}
	h := &Hosts{index: map[string]int{}}
	var wrong error
	for _, text := range list {
		name, port, err := hostkey.ParsePattern(text)
		switch {
		case err != nil:
			wrong = fmt.Errorf("%.260q: %w", text, err)
			continue
		case strings.HasPrefix(name, "*"):
			wrong = fmt.Errorf("%.260q is a pattern, not a host", text)
			continue
		case port != "":
			name = net.JoinHostPort(name, port)
		}
		if _, known := h.index[name]; !known {
			h.index[name] = len(h.names)
			h.names = append(h.names, name)
		}
	}
	h.names = append(h.names, "other")
	return h, wrong
}

// of returns the index of the host of u, which may be nil.
func (h *Hosts) of(u *url.URL) int {
	if u != nil && len(h.index) > 0 {
		key := hostkey.Of(u)
		if i, ok := h.index[key.String()]; ok {
			return i
		}
		if i, ok := h.index[key.Host]; ok {
			return i
		}
	}
	return len(h.names) - 1
}

// requests are the histograms of the requests to a host under a policy, by outcome.
type requests struct{ took, attempts [outcomeCount]histogram }

// Timed reports whether Took observes anything.
func (p *Policy) Timed() bool { return p != nil && p.hosts != nil }

// Took observes a request to u that has ended. It must be Timed.
func (p *Policy) Took(u *url.URL, outcome int, d time.Duration, attempts int) {
	i := p.hosts.of(u)
	r, labels := &p.requests[i], []string{p.Name, Outcomes[outcome], p.hosts.names[i]}
	r.took[outcome].observe(&durations, d, nil, labels...)
	// The histogram counts attempts as seconds.
	r.attempts[outcome].observe(&tries, time.Duration(attempts)*time.Second, nil, labels...)
}
