// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Webhooks is a durable sender of webhooks in the manner of Standard Webhooks
// (https://www.standardwebhooks.com). It shows what belongs in a queue and what
// in the transport:
//
//   - The transport, which is retrip, makes two attempts in a run: for a broken
//     connection, a restart, a Retry-After of a few seconds. Each attempt is
//     signed afresh under it, and has the message's id, by which receivers know
//     what they have already.
//   - The queue, which is SQLite, makes the runs, over days and over restarts:
//     the schedule with jitter, the longer Retry-After, a breaker for each
//     endpoint (retrip's is for a host, where many endpoints may live), 410 and
//     days of failures, which disable an endpoint, and dead letters, which can be
//     sent again.
//
// A message is delivered at least once, and in no certain order.
package main

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

func main() {
	log.SetFlags(0)
	server := httptest.NewServer(receivers())
	defer server.Close()
	// A sender of yours would have Public() as its base: here is loopback.
	if err := run(context.Background(), server.URL, http.DefaultTransport, log.Writer()); err != nil {
		log.Fatal(err)
	}
}

// receivers has three endpoints: one is well, one fails once, one is gone.
func receivers() http.Handler {
	var calls atomic.Int64
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/flaky" && calls.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/gone":
			w.WriteHeader(http.StatusGone)
		}
	})
}

// run sends a message to each of them.
func run(ctx context.Context, url string, base http.RoundTripper, out io.Writer) error {
	dir, err := os.MkdirTemp("", "webhooks")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	store, err := Open(ctx, filepath.Join(dir, "queue.db"))
	if err != nil {
		return err
	}
	defer store.Close()
	for _, id := range []string{"well", "flaky", "gone"} {
		if err := store.AddEndpoint(ctx, id, url+"/"+id, "whsec_bXktMzItYnl0ZS1sb25nLWV4YW1wbGUtc2VjcmV0IQ=="); err != nil {
			return err
		}
	}
	sender := NewSender(store, base, slog.New(slog.NewTextHandler(out, nil)))
	if _, err := sender.Send(ctx, []byte(`{"type":"example.greeting","data":{"hello":"world"}}`)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	return sender.Run(ctx)
}
