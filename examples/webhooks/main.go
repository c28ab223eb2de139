// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Webhooks is a durable sender of webhooks that follows Standard Webhooks
// (https://www.standardwebhooks.com). It shows which retries belong in a queue
// and which in the transport:
//
//   - The transport, retrip, makes two attempts per run, for a broken
//     connection, a restart, or a Retry-After of a few seconds. A signer below
//     it signs each attempt; receivers know duplicates by the message's id.
//   - The queue, in SQLite, makes runs over days and across restarts. It has
//     the schedule, longer Retry-After values, a breaker per endpoint (retrip's
//     is per host), dead letters, and disables dead endpoints.
//
// Each message is delivered at least once, in no particular order.
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
	// A real sender would use Public() as its base; this example uses loopback.
	if err := run(context.Background(), server.URL, http.DefaultTransport, log.Writer()); err != nil {
		log.Fatal(err)
	}
	log.Print("So \"well\" took the message at once; \"flaky\" failed once, and the transport repeated the attempt within the run.\n",
		"\"gone\" answered 410: the queue keeps a dead letter. Had \"flaky\" gone on failing, the queue would have tried for days.")
}

// receivers serves three endpoints: one works, one fails once, one is gone.
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
