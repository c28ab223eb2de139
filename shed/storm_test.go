// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/storm"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

var table = flag.Bool("table", false, "with -v, print the table of docs/shed.md: some minutes")

// server is a row of the table.
type server struct {
	name    string
	handler *shed.Handler // nil means no Handler
}

func servers() []server {
	return []server{
		{"none: a queue of 1000 in the server", nil},
		{"QueueTime 1 s, retries from 500 ms on", &shed.Handler{QueueTime: time.Second, RetryShare: 0.5}},
		{"QueueTime 1 s, retries from 200 ms on", &shed.Handler{QueueTime: time.Second, RetryShare: 0.2}},
		{"QueueTime 1 s, retries as first attempts", &shed.Handler{QueueTime: time.Second, RetryShare: 1}},
		{"QueueTime 200 ms, retries as first attempts", &shed.Handler{QueueTime: 200 * time.Millisecond, RetryShare: 1}},
		{"QueueTime 200 ms, retries from 40 ms on", &shed.Handler{QueueTime: 200 * time.Millisecond}},
		{"default: 100 ms, retries from 20 ms on", &shed.Handler{}},
	}
}

// brownout runs a load against a server with a brownout, in a bubble.
func brownout(t *testing.T, h *shed.Handler, clients int, change func(*storm.Load)) (result *storm.Result, load storm.Load) {
	synctest.Test(t, func(t *testing.T) {
		var server *storm.Server
		server, load = storm.Brownout(clients)
		if change != nil {
			change(&load)
		}
		handler := http.Handler(server)
		if h != nil {
			limited := &shed.Handler{Handler: server, Limit: server.Workers, QueueTime: h.QueueTime, RetryShare: h.RetryShare}
			handler = limited
		}
		s := memhttp.NewServer(t, memhttp.HTTP1, handler)
		base := s.Transport()
		base.MaxIdleConnsPerHost = 100
		result = load.Run(t.Context(), server, base, s.URL)
		base.CloseIdleConnections()
	})
	return result, load
}

// The table of docs/shed.md: seconds to recovery (-1 if there was none in 24 s)
// and the goodput during the trigger, by server and fleet, with the default
// budget and with none.
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("with -table")
	}
	for _, s := range servers() {
		var line strings.Builder
		line.WriteString(fmt.Sprintf("%-46s", s.name))
		for _, budget := range []retrip.Budget{{}, retrip.Unlimited} {
			for _, clients := range []int{1000, 10_000, 100_000} {
				result, load := brownout(t, s.handler, clients, func(l *storm.Load) { l.Policy.Budget = budget })
				line.WriteString(fmt.Sprintf(" | %3d (%2.0f %%)", result.Recovery(load), 100*result.Goodput(3, 13)))
			}
		}
		t.Log(line.String())
	}
}

// The storm that the clients can't end by themselves: with one request per 14 s
// and client, their budgets don't help.
func TestHandler_EndsAStorm(t *testing.T) {
	if testing.Short() || testenv.Race {
		t.Skip("takes some seconds, and is about figures")
	}
	t.Parallel()
	const clients = 10_000
	short := func(l *storm.Load) {
		l.Trigger, l.TriggerEnd, l.End = time.Second, 7*time.Second, 14*time.Second
	}
	result, load := brownout(t, nil, clients, short)
	assert.Equal(t, storm.Never, result.Recovery(load), "without: goodput %v", result.Good)
	result, load = brownout(t, &shed.Handler{}, clients, short)
	assert.LessOrEqual(t, result.Recovery(load), 1, "with: goodput %v", result.Good)
	assert.GreaterOrEqual(t, result.Recovery(load), 0)
}
