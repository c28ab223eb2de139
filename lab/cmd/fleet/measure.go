// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/storm"
	"github.com/retrip/retrip/lab"
)

// child is a process that runs this program in another role. It ends when its
// input ends.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// clientNice is the niceness of the fleet's processes. In a real fleet, the
// server and the store have machines of their own. Here, 64 client processes
// would leave each of them a 66th of this machine.
const clientNice = 10

func startChild(ctx context.Context, niceness int, args ...string) (*child, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if nice, err := exec.LookPath("nice"); err == nil {
		args = append([]string{"-n", strconv.Itoa(niceness), path}, args...)
		path = nice
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stderr = os.Stderr
	// Each is one of many small processes.
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	c := &child{cmd: cmd}
	// On Ctrl-C, a guard has time to end its command.
	cmd.Cancel = func() error { return c.in.Close() }
	cmd.WaitDelay = 5 * time.Second
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, cmd.Start()
}

func (c *child) stop() {
	c.in.Close()
	c.cmd.Wait()
}

// arrivals counts the attempts that arrive at a server, per second.
type arrivals struct {
	http.Handler
	began             atomic.Pointer[time.Time]
	attempts, retries []atomic.Int64
}

func (a *arrivals) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if began := a.began.Load(); began != nil {
		if second := int(time.Since(*began) / time.Second); second >= 0 && second < len(a.attempts) {
			a.attempts[second].Add(1)
			if r.Header.Get("Retry-Attempt") != "" {
				a.retries[second].Add(1)
			}
		}
	}
	a.Handler.ServeHTTP(w, r)
}

func loaded(list []atomic.Int64) []int64 {
	numbers := make([]int64, len(list))
	for i := range list {
		numbers[i] = list[i].Load()
	}
	return numbers
}

// measure runs the load of a fleet with one rule.
func measure(ctx context.Context, rule string, load storm.Load, m storm.Measured, s *store) (r storm.Run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server, _ := storm.Brownout(load.Clients)
	seconds := int(load.End / time.Second)
	handler := &arrivals{Handler: server, attempts: make([]atomic.Int64, seconds), retries: make([]atomic.Int64, seconds)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return r, err
	}
	// Over HTTP/2, an attempt that times out doesn't close a connection.
	// Thousands of new connections per second would keep this machine busy.
	web := &http.Server{Handler: handler, Protocols: lab.H2C.Protocols()}
	defer web.Close()
	go web.Serve(listener)

	var fleet []*child
	defer func() {
		cancel()
		for _, c := range fleet {
			c.stop()
		}
	}()
	for i := range m.Processes {
		clients := m.Clients*(i+1)/m.Processes - m.Clients*i/m.Processes
		j := job{
			Rule: rule, Clients: clients, Rate: load.Rate * float64(clients) / float64(m.Clients), End: load.End,
			Server: "http://" + listener.Addr().String(), Store: s.addr(), Fleet: strings.ReplaceAll(rule, " ", "-"),
		}
		c, err := startChild(ctx, clientNice, processCommand)
		if err != nil {
			return r, err
		}
		fleet = append(fleet, c)
		if err := json.NewEncoder(c.in).Encode(j); err != nil {
			return r, fmt.Errorf("a process has ended: %w", err)
		}
	}
	for _, c := range fleet {
		if line, err := c.out.ReadString('\n'); strings.TrimSpace(line) != ready {
			return r, ended(ctx, err)
		}
	}
	began := time.Now().Add(time.Second).Truncate(time.Millisecond)
	server.Begin(load, began)
	handler.began.Store(&began)
	for _, c := range fleet {
		if err := json.NewEncoder(c.in).Encode(began); err != nil {
			return r, ended(ctx, err)
		}
	}
	fmt.Fprintf(os.Stderr, "%s: %d processes begin\n", rule, len(fleet)) // a run takes most of a minute
	r = storm.Run{Rule: rule, Operations: make([]int64, seconds)}
	for second, before := -1, int64(0); second < seconds; second++ {
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-time.After(time.Until(began.Add(time.Duration(second+1) * time.Second))):
		}
		n := s.operations(ctx)
		if second >= 0 {
			r.Operations[second] = n - before
		}
		before = n
	}
	var all storm.Result
	for _, c := range fleet {
		var one storm.Result
		if err := json.NewDecoder(c.out).Decode(&one); err != nil {
			return r, ended(ctx, err)
		}
		all.Add(&one)
	}
	r.Recovery, r.Requests, r.Answered = all.Recovery(load), all.Arrived, all.Good
	r.Attempts, r.Retries = loaded(handler.attempts), loaded(handler.retries)
	return r, nil
}

func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return fmt.Errorf("a process has ended: %w", err)
}
