// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/fleetredis"
	"github.com/retrip/retrip/internal/storm"
	"github.com/retrip/retrip/lab"
)

// processCommand is the first argument of this program when it runs as a
// process of the fleet.
const processCommand = "process"

// The rules for retries.
const (
	noRetries    = "no retries"
	budgetsAlone = "budgets alone"
	withAccount  = "with the account"
)

var rules = []string{noRetries, budgetsAlone, withAccount}

// job describes the work of a process. The process reads a job from its input,
// says that it is ready, reads when to begin, and writes a storm.Result.
type job struct {
	Rule    string
	Clients int
	Rate    float64
	End     time.Duration
	Server  string // its URL
	Store   string // host and port
	Fleet   string
}

const ready = "ready"

// process is a process of the fleet. It ends when its input ends, so nothing
// stays behind, however the program that started it ends.
func process(in io.Reader, out io.Writer) error {
	lines := json.NewDecoder(bufio.NewReader(in))
	var j job
	if err := lines.Decode(&j); err != nil {
		return err
	}
	_, load := storm.Brownout(j.Clients)
	load.Rate, load.End = j.Rate, j.End
	if j.Rule == noRetries {
		load.Policy.MaxAttempts = 1
	}
	var store *fleetredis.Store
	if j.Rule == withAccount {
		redis, err := fleetredis.Dial(&redis.UniversalOptions{Addrs: []string{j.Store}}, fleetredis.Options{Fleet: j.Fleet})
		if err != nil {
			return err
		}
		defer redis.Close()
		store = redis
	}
	base := &http.Transport{Protocols: lab.H2C.Protocols()}
	defer base.CloseIdleConnections()
	fmt.Fprintln(out, ready)
	var began time.Time
	if err := lines.Decode(&began); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		lines.Decode(&struct{}{})
		os.Exit(1)
	}()
	result := load.Send(ctx, began, base, j.Server, func(base http.RoundTripper) *retrip.Transport {
		t := &retrip.Transport{Base: base, Policy: load.Policy}
		if store != nil {
			t.Fleet = retrip.NewFleet(store.Add)
		}
		return t
	})
	return json.NewEncoder(out).Encode(result)
}
