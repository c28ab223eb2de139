// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Fleet shows the effect of an account that all clients share: 1000 clients,
// each with a budget of its own, make one request each to a server that is
// down.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

const clients = 1000

func main() {
	var attempts atomic.Int64
	down := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		attempts.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: down}
	go server.Serve(listener)
	defer server.Close()
	url := "http://" + listener.Addr().String()

	fmt.Printf("%d clients make a request each to a server that is down:\n", clients)
	outage(url, nil)
	fmt.Printf("  %4d attempts by their budgets alone: for each client, this is its first failure\n", attempts.Swap(0))

	// The account is in the memory of this program. Clients in many programs
	// can share one in Redis: pass a fleetredis.Store to retrip.NewFleet.
	fleet := retrip.NewFleet(nil)
	defer fleet.Close()
	outage(url, fleet)
	fmt.Printf("  %4d attempts with an account that all share\n", attempts.Load())
	fmt.Println("So alone, each client takes the outage for bad luck and makes all its attempts. The account has seen the failures of the others.")
}

// outage makes one request for each client, a few at a time.
func outage(url string, fleet *retrip.Fleet) {
	base := &http.Transport{MaxIdleConnsPerHost: 20}
	defer base.CloseIdleConnections()
	var wg sync.WaitGroup
	next := make(chan struct{})
	for range 20 {
		wg.Go(func() {
			for range next {
				client := &http.Client{Transport: &retrip.Transport{Base: base, Fleet: fleet, Policy: retrip.Policy{
					FleetBudget: 100, // small, so that the few requests here empty it
					Backoff:     retrip.Backoff{Base: 10 * time.Millisecond, Cap: 10 * time.Millisecond},
				}}}
				resp, err := client.Get(url)
				if err != nil {
					log.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	for range clients {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
}
