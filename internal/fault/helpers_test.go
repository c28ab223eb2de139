// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// kinds are the kinds of bodies, each of "payload".
var kinds = map[string]func() io.Reader{
	"none":    func() io.Reader { return nil },
	"GetBody": func() io.Reader { return strings.NewReader("payload") },
	"stream":  func() io.Reader { return play.Stream([]byte("payload")) },
	"section": func() io.Reader { return io.NewSectionReader(strings.NewReader("payload"), 0, 7) },
}

func request(t *testing.T, url string) *http.Request {
	t.Helper()
	return play.MustRequest(t, "GET", url, nil).WithContext(t.Context())
}

// traced returns req with a hook, and the Done event that it gets.
func traced(t *testing.T, req *http.Request) (*http.Request, *retrip.Event) {
	done := new(retrip.Event)
	return req.WithContext(retrip.WithTrace(t.Context(), &retrip.Trace{Done: func(e retrip.Event) { *done = e }})), done
}

// timely returns play.Steady with a timeout of each attempt.
func timely(timeout time.Duration) retrip.Policy {
	return play.With(func(p *retrip.Policy) { p.AttemptTimeout = timeout })
}

// atOnce returns play.AtOnce with a timeout of each attempt.
func atOnce(timeout time.Duration) retrip.Policy {
	p := play.AtOnce
	p.AttemptTimeout = timeout
	return p
}

// nothing is a handler that answers 200.
func nothing(http.ResponseWriter, *http.Request) {}

// goesAway ends a connection with a GOAWAY that leaves its stream unprocessed.
func goesAway(w *play.H2Writer) {
	w.GoAway(0, 0)
	w.Close()
}

// hangsUp returns a dialer whose servers close each connection at once.
func hangsUp(dials *atomic.Int32) func(context.Context, string, string) (net.Conn, error) {
	return func(context.Context, string, string) (net.Conn, error) {
		dials.Add(1)
		client, server := net.Pipe()
		server.Close()
		return client, nil
	}
}
