// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Breaker calls a host that hangs and later recovers, behind a circuit breaker,
// and prints what each second costs.
package main

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

func main() {
	var down atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			<-r.Context().Done() // hangs until the caller leaves
		}
	}))
	defer server.Close()

	transport := &retrip.Transport{
		Policy: retrip.Policy{
			AttemptTimeout: 50 * time.Millisecond,
			MaxAttempts:    2,
			Backoff:        retrip.Backoff{Base: 10 * time.Millisecond},
			Breaker:        retrip.Breaker{Ratio: 0.5, MinVolume: 5, Window: 2 * time.Second, OpenFor: time.Second},
		},
		// The Transport logs state changes of a host as warnings.
		Logger: slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime})),
	}
	client := &http.Client{Transport: transport}

	began := time.Now()
	for second := range 5 {
		down.Store(second == 1 || second == 2)
		if second == 1 {
			fmt.Println("the host hangs")
		} else if second == 3 {
			fmt.Println("the host has recovered")
		}
		tally(client, server.URL, began.Add(time.Duration(second+1)*time.Second), second)
	}
	state, err := transport.HostState(server.Listener.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("state at the end:", state)
	fmt.Println("So after the first timeouts, requests to the hanging host failed at once instead of waiting, and a probe found that it had recovered.")
}

// tally sends requests, 10 ms after each answer, and prints their outcomes.
func tally(client *http.Client, url string, until time.Time, second int) {
	var ok, timeouts, refused int
	var waited time.Duration
	for time.Now().Before(until) {
		began := time.Now()
		resp, err := client.Get(url)
		waited += time.Since(began)
		var failure *retrip.Error
		switch {
		case err == nil:
			resp.Body.Close()
			ok++
		case errors.As(err, &failure) && failure.Reason == retrip.ReasonBreakerOpen && failure.Attempts == 0:
			refused++ // at once, without an attempt
		default:
			timeouts++
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Printf("second %d: %2d succeeded, %2d timed out, %2d refused at once; %v spent waiting\n",
		second, ok, timeouts, refused, waited.Round(time.Millisecond))
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
