// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix

package lab

import (
	"bufio"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

const sinkEnv = "RETRIP_SINK"

// TestSink is not a test but the server of BenchmarkUploadOfAFile. It runs in a
// separate process, so that its CPU time doesn't count as the client's.
func TestSink(t *testing.T) {
	if os.Getenv(sinkEnv) == "" {
		t.Skip("started by BenchmarkUploadOfAFile")
	}
	l, err := listen()
	require.NoError(t, err)
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }))
	}()
	fmt.Println("http://" + l.Addr().String())
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
}

// BenchmarkUploadOfAFile uploads a file of 1 GiB over HTTP/1.1 without TLS,
// which bare net/http does with sendfile(2), and reports the client's CPU time.
func BenchmarkUploadOfAFile(b *testing.B) {
	const size = 1 << 30
	sink := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestSink$")
	sink.Env = append(os.Environ(), sinkEnv+"=1")
	in, err := sink.StdinPipe()
	require.NoError(b, err)
	out, err := sink.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, sink.Start())
	defer func() {
		in.Close()
		_, _ = io.Copy(io.Discard, out)
		_ = sink.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	url := strings.TrimSpace(line)
	name := filepath.Join(b.TempDir(), "file")
	file, err := os.Create(name)
	require.NoError(b, err)
	_, err = io.CopyN(file, rand.New(rand.NewSource(1)), size)
	require.NoError(b, err)
	require.NoError(b, file.Close())

	for _, tt := range []struct {
		name      string
		transport http.RoundTripper
	}{{"bare", &http.Transport{}}, {"wrapped", &retrip.Transport{Base: &http.Transport{}}}} {
		b.Run(tt.name, func(b *testing.B) {
			b.SetBytes(size)
			before := cpuTime(b)
			for b.Loop() {
				f, err := os.Open(name)
				require.NoError(b, err)
				req := play.MustRequest(b, http.MethodPut, url, f)
				req.ContentLength = size
				testenv.Drop(b, tt.transport, req)
			}
			b.ReportMetric(float64((cpuTime(b)-before).Milliseconds())/float64(b.N), "CPU-ms/op")
		})
	}
}

// cpuTime returns the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
