// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Prometheus is the program of weight/nethttp with a metric of client_golang.
package main

import (
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
)

func main() {
	requests := prometheus.NewCounter(prometheus.CounterOpts{Name: "requests_total"})
	requests.Inc()
	resp, err := (&http.Client{}).Get("http://127.0.0.1:1/")
	fmt.Println(resp, err, requests.Desc())
}
