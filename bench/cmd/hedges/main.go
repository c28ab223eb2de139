// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Hedges measures hedged requests with retrip and with other libraries, over real
// servers on the loopback.
//
//	go run ./cmd/hedges           measure and print
//	go run ./cmd/hedges -save     also save the results, and update the page
//	go run ./cmd/hedges -render   update the page from the saved results
package main

import (
	"flag"
	"fmt"
	"log"
	"testing"

	"github.com/retrip/retrip/bench"
)

func main() {
	rounds := flag.Int("rounds", 5, "how often each library is measured")
	requests := flag.Int("requests", 10_000, "how many requests each, in each round")
	save := flag.Bool("save", false, "save the results, and write their section of "+bench.HedgingPage)
	render := flag.Bool("render", false, "write the section from the results saved before")
	root := flag.String("root", "..", "directory of the repository")
	log.SetFlags(0)
	log.SetPrefix("hedges: ")
	testing.Init()
	flag.Parse()
	if err := run(*rounds, *requests, *save, *render, *root); err != nil {
		log.Fatal(err)
	}
}

func run(rounds, requests int, save, render bool, root string) error {
	if render {
		r, err := bench.LoadHedging(root)
		if err != nil {
			return err
		}
		return r.UpdatePage(root)
	}
	r, err := bench.MeasureHedging(rounds, requests, 20)
	if err != nil {
		return err
	}
	fmt.Print(r.Section())
	if !save {
		return nil
	}
	if err := r.Save(root); err != nil {
		return err
	}
	return r.UpdatePage(root)
}
