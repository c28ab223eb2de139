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

// brownout runs a load against a server with a brownout, with or without a
// Handler, in a bubble.
func brownout(t *testing.T, sheds bool, clients int, change func(*storm.Load)) (result *storm.Result, load storm.Load) {
	synctest.Test(t, func(t *testing.T) {
		var server *storm.Server
		server, load = storm.Brownout(clients)
		change(&load)
		handler := http.Handler(server)
		if sheds {
			handler = &shed.Handler{Handler: server, Limit: server.Workers}
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
// and the goodput during the trigger, without and with a Handler, by fleet, with
// the default budget and with none.
func TestTable(t *testing.T) {
	if !*table {
		t.Skip("with -table")
	}
	for _, sheds := range []bool{false, true} {
		var line strings.Builder
		fmt.Fprintf(&line, "shed.Handler: %-5v", sheds)
		for _, budget := range []float64{0, retrip.Off} {
			for _, clients := range []int{1000, 10_000, 100_000} {
				result, load := brownout(t, sheds, clients, func(l *storm.Load) { l.Policy.Budget = budget })
				fmt.Fprintf(&line, " | %3d (%2.0f %%)", result.Recovery(load), 100*result.Goodput(3, 13))
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
	result, load := brownout(t, false, clients, short)
	assert.Equal(t, storm.Never, result.Recovery(load), "without: goodput %v", result.Good)
	result, load = brownout(t, true, clients, short)
	assert.LessOrEqual(t, result.Recovery(load), 1, "with: goodput %v", result.Good)
	assert.GreaterOrEqual(t, result.Recovery(load), 0)
}
