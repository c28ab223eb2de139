// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Downloads fetches large bodies through a proxy that cuts the connection every
// few MiB, and compares the received bytes with the sent bytes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/retrip/retrip/lab"
)

func main() {
	runs := flag.Int("runs", 100, "how many times, over HTTP/1.1 and HTTP/2 in turn")
	size := flag.Int64("mib", 1024, "MiB of the body")
	every := flag.Int64("every", 10, "MiB between two cuts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	worst := 0.0
	for i := range *runs {
		d, err := lab.RunDownload(ctx, *size<<20, *every<<20, i%2 == 1)
		if err != nil {
			fmt.Fprintf(os.Stderr, "downloads: run %d: %v\n", i+1, err)
			os.Exit(1)
		}
		worst = max(worst, d.Overhead())
		fmt.Printf("%3d  HTTP/%d  %d cuts  %.4f × the bytes on the wire  %.1f s\n", i+1, 1+i%2, d.Cuts, d.Overhead(), d.Took.Seconds())
	}
	fmt.Printf("%d runs of %d MiB: each whole, at most %.4f × the bytes\n", *runs, *size, worst)
}
