// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Shedstorm runs fleets of real clients against a server with a brownout, over
// loopback sockets and in real time, with and without a shed.Handler.
// docs/shed-tables.md shows its output. TestTable of package shed measures the same on
// virtual time.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/storm"
	"github.com/retrip/retrip/shed"
)

func main() {
	fleets := flag.String("clients", "1000,10000", "sizes of fleets")
	end := flag.Duration("end", 25*time.Second, "length of a run; the server is slow from 3 s to 13 s")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	fmt.Println("700 requests/s to a server that can do 1000, and 303 from 3 s to 13 s; clients wait 300 ms")
	for field := range strings.SplitSeq(*fleets, ",") {
		clients, err := strconv.Atoi(field)
		if err != nil || clients < 1 {
			log.Fatalf("shedstorm: -clients is %q: it must be sizes of fleets, as in 1000,10000", *fleets)
		}
		for _, sheds := range []bool{false, true} {
			server, load := storm.Brownout(clients)
			if load.End = *end; load.End < load.TriggerEnd+5*time.Second {
				log.Fatalf("shedstorm: -end is %v: it must be at least %v", *end, load.TriggerEnd+5*time.Second)
			}
			var handler http.Handler = server
			name := "without"
			if sheds {
				name, handler = "with", &shed.Handler{Handler: server, Limit: server.Workers}
			}
			result, err := run(ctx, handler, server, load)
			if err != nil {
				log.Fatal("shedstorm: ", err)
			}
			if ctx.Err() != nil {
				return
			}
			recovery := fmt.Sprintf("%d s", result.Recovery(load))
			if result.Recovery(load) == storm.Never {
				recovery = fmt.Sprintf("none in %v", load.End-load.TriggerEnd-3*time.Second)
			}
			fmt.Printf("%6d clients, %-7s: recovery %s; answered %.0f %% before, %.0f %% while slow (the server can do 43), %.0f %% in the last 5 s; attempts %d, refused %d\n",
				clients, name, recovery, 100*result.Goodput(0, 3), 100*result.Goodput(3, 13), 100*result.Goodput(len(result.Good)-5, len(result.Good)), result.Attempts, result.Refused)
		}
	}
}

// run serves handler on a socket during the load.
func run(ctx context.Context, handler http.Handler, server *storm.Server, load storm.Load) (*storm.Result, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &http.Server{Handler: handler}
	defer s.Close()
	go s.Serve(listener)
	base := &http.Transport{MaxIdleConnsPerHost: 1000}
	defer base.CloseIdleConnections()
	return load.Run(ctx, server, base, "http://"+listener.Addr().String()), nil
}
