// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Nethttp is the reference of make weight: a request with net/http alone.
package main

import (
	"fmt"
	"net/http"
)

func main() {
	resp, err := (&http.Client{}).Get("http://127.0.0.1:1/")
	fmt.Println(resp, err)
}
