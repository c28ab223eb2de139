// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Measurements that aren't timings: memory and connections. Each runs in a
// process of its own.

const (
	// UploadSize is the size of the streamed PUT. The stream delivers
	// UploadRate bytes per second, like a disk or another connection.
	UploadSize = 64 << 20
	UploadRate = 128 << 20

	// Waiters is how many requests wait at once.
	Waiters = 100_000

	// Fetches is how many requests are made one after another. Each of them
	// meets one 503.
	Fetches = 1000
)

// ErrorBodies are the body sizes of those 503 responses.
var ErrorBodies = []int{2 << 10, 64 << 10, 1 << 20}

// UploadServer answers a PUT with the time at which its first byte arrived.
func UploadServer() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			if _, err := io.ReadFull(r.Body, make([]byte, 1)); err != nil {
				panic(http.ErrAbortHandler)
			}
			first := time.Now().UnixNano()
			if n, err := io.Copy(io.Discard, r.Body); err != nil || n != UploadSize-1 {
				panic(http.ErrAbortHandler)
			}
			w.Header().Set("First-Byte", strconv.FormatInt(first, 10))
		}
	}))
}

// Upload is the cost of a streamed PUT.
type Upload struct {
	Heap      int64         // maximum growth of the heap, including garbage
	FirstByte time.Duration // time until the server had the first byte
}

// MeasureUpload sends a stream that can't be replayed to an UploadServer.
func MeasureUpload(p Peer, url string) (Upload, error) {
	c := p.Client(&http.Transport{}, Usual)
	resp, err := c.Do(newCall(context.Background(), http.MethodGet, url, 0, false).next())
	if err != nil {
		return Upload{}, err
	}
	resp.Body.Close()
	runtime.GC()
	before, peak := heap(), int64(0)
	done, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for tick := time.NewTicker(500 * time.Microsecond); ; {
			peak = max(peak, heap())
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	req, err := http.NewRequest(http.MethodPut, url, &paced{})
	if err != nil {
		return Upload{}, err
	}
	req.ContentLength = UploadSize
	begin := time.Now().UnixNano()
	resp, err = c.Do(req)
	close(done)
	<-sampled
	if err != nil {
		return Upload{}, err
	}
	resp.Body.Close()
	first, err := strconv.ParseInt(resp.Header.Get("First-Byte"), 10, 64)
	return Upload{Heap: peak - before, FirstByte: time.Duration(first - begin)}, err
}

// paced is a stream of UploadSize bytes at UploadRate.
type paced struct {
	began time.Time
	n     int64
}

func (r *paced) Read(p []byte) (int, error) {
	if r.n == 0 {
		r.began = time.Now()
	}
	due := r.began.Add(time.Duration(float64(r.n) / UploadRate * float64(time.Second)))
	if ahead := time.Until(due); ahead > time.Millisecond {
		time.Sleep(ahead)
	}
	n := min(int64(len(p)), UploadSize-r.n)
	if n == 0 {
		return 0, io.EOF
	}
	r.n += n
	return int(n), nil
}

func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64())
}

// Waiting is the memory held by each of Waiters requests while all of them
// wait.
type Waiting struct {
	Heap, Stack int64   // bytes
	Goroutines  float64 // including the caller's
}

// MeasureWaiting makes Waiters requests, which can be canceled, wait before
// their first retry or, if p doesn't retry, for their response.
func MeasureWaiting(p Peer) (Waiting, error) {
	base := &failing{hang: !p.Retries()}
	c := p.Client(base, Hour)
	requests := make([]*http.Request, Waiters)
	for i := range requests {
		requests[i] = newCall(cancellable, http.MethodGet, target, 0, false).req
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	goroutines := runtime.NumGoroutine()
	var returned atomic.Int64
	for _, req := range requests {
		go func() {
			_, _ = c.Do(req)
			returned.Add(1)
		}()
	}
	for base.calls.Load() < Waiters {
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // covers the time from the response to the start of the wait
	w := Waiting{Goroutines: float64(runtime.NumGoroutine()-goroutines) / Waiters}
	runtime.GC()
	runtime.ReadMemStats(&after)
	w.Heap = int64(after.HeapAlloc-before.HeapAlloc) / Waiters
	w.Stack = int64(after.StackInuse-before.StackInuse) / Waiters
	runtime.KeepAlive(requests)
	if returned.Load() > 0 || base.calls.Load() != Waiters {
		return w, errors.New("not all requests are waiting for their second attempt")
	}
	return w, nil
}

// failing answers 503, or never answers.
type failing struct {
	calls atomic.Int64
	hang  bool
}

func (f *failing) RoundTrip(req *http.Request) (*http.Response, error) {
	f.calls.Add(1)
	if f.hang {
		select {}
	}
	return &http.Response{StatusCode: http.StatusServiceUnavailable, Header: header, Request: req, Body: http.NoBody}, nil
}

// MeasureConnections returns how many connections a sequence of Fetches
// requests opens if each meets one 503 with a body of size bytes.
func MeasureConnections(p Peer, size int) (int, error) {
	var opened atomic.Int64
	var met sync.Map
	body := make([]byte, size)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, again := met.LoadOrStore(r.URL.Path, true); !again {
			w.Header().Set("Content-Length", strconv.Itoa(size))
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write(body)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	defer server.CloseClientConnections()
	c := p.Client(&http.Transport{}, None)
	for i := range Fetches {
		url := fmt.Sprintf("%s/%d", server.URL, i)
		resp, err := c.Do(newCall(context.Background(), http.MethodGet, url, 0, false).next())
		if err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusOK {
			return 0, errors.New(resp.Status)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	return int(opened.Load()), nil
}

// Machine returns the model of the processor, if the system reports it.
func Machine() string {
	data, _ := os.ReadFile("/proc/cpuinfo")
	for line := range strings.Lines(string(data)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOOS + "/" + runtime.GOARCH
}
