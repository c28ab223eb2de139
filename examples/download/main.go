// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Download fetches a large file over a line that breaks every few MiB, with
// Policy.Resume, and prints the SHA-256 of what it received. With -url it
// fetches that file. Otherwise it fetches a file from its own loopback server,
// whose connections break.
package main

import (
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/retrip/retrip"
)

// result describes a download.
type result struct {
	size      int64
	sum       string
	continued int // how often the body broke and was continued
}

// download fetches url and writes its progress to out.
func download(ctx context.Context, url string, out io.Writer) (result, error) {
	var r result
	transport := &retrip.Transport{
		Policy: retrip.Policy{
			AttemptTimeout:  10 * time.Second, // up to the response headers
			Resume:          time.Minute,
			BodyIdleTimeout: 10 * time.Second,
			Backoff:         retrip.Backoff{Base: 50 * time.Millisecond},
		},
		Trace: &retrip.Trace{Resume: func(e retrip.Event) {
			if e.Reason == "continued" {
				r.continued++
			}
			fmt.Fprintf(out, "broke at byte %d: %v: %s\n", e.Offset, e.Err, e.Reason)
		}},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return r, err
	}
	// By default net/http asks for gzip, and a decoded body can't be continued.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return r, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return r, fmt.Errorf("%s: %s", url, resp.Status)
	}
	sum := sha256.New()
	r.size, err = io.Copy(sum, resp.Body)
	r.sum = fmt.Sprintf("%x", sum.Sum(nil))
	return r, err
}

func main() {
	log.SetFlags(0)
	url := flag.String("url", "", "what to fetch, instead of a file from a server of its own")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	want := ""
	if *url == "" {
		s, sum := startServer(64<<20, 7<<20)
		defer s.Close()
		*url, want = s.URL, sum
	}
	r, err := download(ctx, *url, os.Stderr)
	if err != nil {
		log.Fatalf("after %d bytes: %v", r.size, err)
	}
	fmt.Printf("%d bytes, broken and continued %d times\nSHA-256 %s\n", r.size, r.continued, r.sum)
	if want == "" {
		return
	}
	if r.sum != want {
		log.Fatalf("the server sent a file with SHA-256 %s", want)
	}
	fmt.Println("So one call of client.Do delivered the whole file over a line that kept breaking: the server has the same SHA-256.")
}
