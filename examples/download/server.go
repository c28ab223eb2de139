// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"time"
)

// startServer starts a server of a file of the given size, and returns the file's SHA-256
// too. The connection of each response breaks after the given number of bytes.
func startServer(size, every int) (server *httptest.Server, sum string) {
	content := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	sum = fmt.Sprintf("%x", sha256.Sum256(content))
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+sum+`"`)
		http.ServeContent(&brittle{w, every}, r, "model.bin", time.Time{}, bytes.NewReader(content))
	})), sum
}

// brittle breaks the connection after left bytes.
type brittle struct {
	http.ResponseWriter
	left int
}

func (b *brittle) Write(p []byte) (int, error) {
	n, err := b.ResponseWriter.Write(p[:min(len(p), b.left)])
	if b.left -= n; b.left == 0 {
		_ = http.NewResponseController(b.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}
