// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Quickstart calls a flaky server and a dead one through a wrapped client, and
// prints every attempt, wait and decision.
package main

import (
	"cmp"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/retrip/retrip"
)

func main() {
	server := httptest.NewServer(flaky())
	defer server.Close()

	metrics := &retrip.Metrics{}
	client := &http.Client{Transport: &retrip.Transport{ // &retrip.Transport{} would do
		Metrics: metrics,
		Trace:   timeline(os.Stdout),
	}}

	fmt.Println("A GET whose connection breaks, then gets a 503, then a 429 with Retry-After, then succeeds:")
	resp, err := client.Get(server.URL + "/report")
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("            the caller sees %s %q\n\n", resp.Status, body)

	fmt.Println("A POST that gets a 502 once. retrip doesn't repeat it, because the server may have charged already:")
	resp, err = client.Post(server.URL+"/charge", "text/plain", strings.NewReader("10 EUR"))
	if err != nil {
		log.Fatal(err)
	}
	resp.Body.Close()
	fmt.Printf("            the caller sees %s\n\n", resp.Status)

	callDeadHost()

	fmt.Println("What Prometheus would scrape (zeros omitted):")
	if err := printMetrics(os.Stdout, metrics); err != nil {
		log.Fatal(err)
	}
	fmt.Println("\nSo retrip repeats what is safe to repeat, waits as the server asks, and says why it stops. The caller sees ordinary responses.")
}

// callDeadHost sends 100 requests to a port at which nobody listens.
func callDeadHost() {
	fmt.Println("100 GETs to a host that is down, and what retrip logs:")
	server := httptest.NewServer(nil)
	server.Close()
	var attempts int
	client := &http.Client{Transport: &retrip.Transport{
		Logger: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		Trace:  &retrip.Trace{Attempt: func(retrip.Event) { attempts++ }},
	}}
	for range 100 {
		resp, err := client.Get(server.URL)
		if err == nil {
			log.Fatal("somebody listens there: ", resp.Status)
		}
	}
	fmt.Printf("            the host got %d attempts for 100 requests\n\n", attempts)
}

// flaky breaks the first GET, fails and throttles the next two, and then
// answers. It fails the first POST only.
func flaky() http.Handler {
	var reports, charges atomic.Int32
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, r *http.Request) {
		switch reports.Add(1) {
		case 1:
			panic(http.ErrAbortHandler) // the connection breaks
		case 2:
			http.Error(w, "overloaded", http.StatusServiceUnavailable)
		case 3:
			w.Header().Set("Retry-After", "1")
			http.Error(w, "slow down", http.StatusTooManyRequests)
		default:
			fmt.Fprint(w, "all is well")
		}
	})
	mux.HandleFunc("POST /charge", func(w http.ResponseWriter, r *http.Request) {
		if charges.Add(1) == 1 {
			http.Error(w, "the charge may have been made", http.StatusBadGateway)
			return
		}
		fmt.Fprint(w, "charged")
	})
	return mux
}

// timeline prints the stages of each request as they happen.
func timeline(w io.Writer) *retrip.Trace {
	line := func(e retrip.Event, format string, args ...any) {
		fmt.Fprintf(w, "%8s    %s\n", e.Elapsed.Round(time.Millisecond), fmt.Sprintf(format, args...))
	}
	return &retrip.Trace{
		Attempt: func(e retrip.Event) { line(e, "attempt %d: %s %s", e.Attempt, e.Request.Method, e.Request.URL.Path) },
		Retry: func(e retrip.Event) {
			who := "backoff"
			if e.FromServer {
				who = "the server asked for it"
			}
			line(e, "  %s → wait %s (%s)", result(e), e.Wait.Round(time.Millisecond), who)
		},
		GiveUp: func(e retrip.Event) { line(e, "  %s → given up: %s", result(e), e.Reason) },
		Done: func(e retrip.Event) {
			if e.Reason == "" {
				line(e, "  %s → done after %d attempts", result(e), e.Attempt)
			}
		},
	}
}

func result(e retrip.Event) string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return cmp.Or(http.StatusText(e.StatusCode), "?")
}

func printMetrics(w io.Writer, c prometheus.Collector) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		return err
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if h := m.GetHistogram(); h != nil {
				value = h.GetSampleSum()
			}
			if value == 0 {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := family.GetName()
			if m.GetHistogram() != nil {
				name += "_sum"
			}
			fmt.Fprintf(w, "  %s{%s} %.3g\n", name, strings.Join(labels, ","), value)
		}
	}
	return nil
}
