// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Retrip is the program of weight/nethttp with a retrip Transport.
package main

import (
	"fmt"
	"net/http"

	"github.com/retrip/retrip"
)

func main() {
	resp, err := (&http.Client{Transport: &retrip.Transport{}}).Get("http://127.0.0.1:1/")
	fmt.Println(resp, err)
}
