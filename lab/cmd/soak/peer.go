// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"github.com/retrip/retrip/lab"
)

// peer represents the server process in the process of the callers.
type peer struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	says *json.Decoder
}

// hello is the server process's first message.
type hello struct {
	Addr map[lab.Proto]string
	Cert []byte // DER
}

// calm is its message when it has stopped making faults.
type calm struct{ Faults int }

// account is its last message.
type account struct {
	Arrivals, Faults, Corrupt int
	Executions                map[lab.Proto][]uint8 // by the number of the request
}

// startPeer starts the server process.
func startPeer(seed uint64) (*peer, hello, error) {
	var h hello
	self, err := os.Executable()
	if err != nil {
		return nil, h, err
	}
	cmd := exec.Command(self, "-serve", "-seed", fmt.Sprint(seed))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, h, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, h, err
	}
	if err := cmd.Start(); err != nil {
		return nil, h, err
	}
	p := &peer{cmd: cmd, in: in, says: json.NewDecoder(bufio.NewReader(out))}
	return p, h, p.says.Decode(&h)
}

// calm stops the network faults.
func (p *peer) calm() (c calm, err error) {
	if _, err := p.in.Write([]byte("\n")); err != nil {
		return c, err
	}
	return c, p.says.Decode(&c)
}

// end stops the servers and returns their account.
func (p *peer) end() (a account, err error) {
	p.in.Close()
	if err := p.says.Decode(&a); err != nil {
		return a, err
	}
	return a, p.cmd.Wait()
}

// servers is the main function of the server process. It runs a server for each
// protocol: behind faults until it reads a line, then without faults until
// standard input ends.
func servers(seed uint64) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h := hello{Addr: map[lab.Proto]string{}}
	ledgers := map[lab.Proto]*lab.Ledger{}
	var proxies []*lab.Faults
	var stops []func()
	var wg sync.WaitGroup
	errs := make(chan error, len(lab.Protos))
	for i, p := range lab.Protos {
		ledger := lab.NewLedger(seed+uint64(i), 0.05)
		server := lab.Serve(p, ledger)
		proxy, err := lab.NewFaults(seed+uint64(i), server.Listener.Addr().String())
		if err != nil {
			return err
		}
		if p == lab.HTTP2 {
			h.Cert = server.Certificate().Raw
		}
		h.Addr[p] = proxy.Addr()
		ledgers[p], proxies = ledger, append(proxies, proxy)
		stops = append(stops, proxy.Stop, server.Close)
		wg.Go(func() { errs <- proxy.Run(ctx) })
	}
	out := json.NewEncoder(os.Stdout)
	if err := out.Encode(h); err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadByte()
	cancel()
	wg.Wait()
	var c calm
	for _, proxy := range proxies {
		if err := <-errs; err != nil {
			return err
		}
		c.Faults += proxy.Total()
	}
	if err := out.Encode(c); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, in)
	for _, stop := range stops {
		stop()
	}
	a := account{Executions: map[lab.Proto][]uint8{}}
	for p, ledger := range ledgers {
		a.Arrivals += ledger.Arrivals()
		a.Faults += ledger.Faults()
		a.Corrupt += ledger.Corrupt()
		a.Executions[p] = ledger.Executions()
	}
	return out.Encode(a)
}
