// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"io"
	"math"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// zeros is a body of the given number of bytes that costs nothing to read.
type zeros struct{ left int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.left)
	z.left -= n
	return int(n), nil
}

func (z *zeros) Close() error { return nil }

// zerosBase answers with a body of zeros that could be continued. It doesn't
// allocate.
type zerosBase struct {
	size int64
	body zeros
	resp http.Response
}

func (b *zerosBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.body.left = b.size
	b.resp = http.Response{StatusCode: 200, Header: zerosHeader, ContentLength: b.size, Body: &b.body, Request: req}
	return &b.resp, nil
}

var zerosHeader = http.Header{"Etag": {`"a"`}}

// The allocations of bodies that must arrive whole, while nothing breaks.
// docs/performance.md accounts for each.
func TestAllocations_Bodies(t *testing.T) {
	if testenv.Race {
		t.Skip("the race detector allocates too")
	}
	req := play.Must(http.NewRequest(http.MethodGet, "http://example.com/", nil))
	buffer := make([]byte, 1000)
	count := func(p retrip.Policy) float64 {
		tr := &retrip.Transport{Base: &zerosBase{size: 3000}, Policy: p, Metrics: &retrip.Metrics{}}
		return testing.AllocsPerRun(200, func() {
			resp, err := tr.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			for {
				if _, err := resp.Body.Read(buffer); err != nil {
					break
				}
			}
			resp.Body.Close()
		})
	}
	// BodyIdleTimeout needs an attempt with a context of its own, like a timeout.
	timeouts := count(retrip.Policy{AttemptTimeout: time.Minute})
	assert.Zero(t, count(retrip.Policy{}))
	assert.EqualValues(t, 1, count(retrip.Policy{Resume: time.Minute}))
	assert.EqualValues(t, timeouts+1, count(retrip.Policy{AttemptTimeout: time.Minute, BodyIdleTimeout: time.Minute}))
	assert.EqualValues(t, timeouts+2, count(retrip.Policy{AttemptTimeout: time.Minute, BodyIdleTimeout: time.Minute, Resume: time.Minute}))
	// The buffer, and the body that returns it.
	assert.EqualValues(t, timeouts+2, count(retrip.Policy{AttemptTimeout: time.Minute, WholeBody: 64 << 10}))
}

// BenchmarkBodies compares, in rounds of one run, what Reads cost without
// retrip, through a Transport that does nothing to bodies, and with each
// setting. It reports nanoseconds beyond bare for each Read of 512 bytes, and
// the share of the time that a body of 256 MiB takes at 1 GB/s, read 32 KiB at
// a time.
func BenchmarkBodies(b *testing.B) {
	policies := map[string]retrip.Policy{
		"off":             {},
		"Resume":          {Resume: time.Minute},
		"BodyIdleTimeout": {BodyIdleTimeout: time.Minute},
		"BodyIdleResume":  {BodyIdleTimeout: time.Minute, Resume: time.Minute},
	}
	measure := func(rt http.RoundTripper, chunk int) float64 {
		req, err := http.NewRequest(http.MethodGet, "http://example.com/", nil)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := rt.RoundTrip(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		buffer, reads := make([]byte, chunk), 0
		began := time.Now()
		for err == nil {
			_, err = resp.Body.Read(buffer)
			reads++
		}
		return float64(time.Since(began)) / float64(reads)
	}
	for name, p := range policies {
		b.Run(name, func(b *testing.B) {
			base := &zerosBase{size: 100_000 * 512}
			tr := &retrip.Transport{Base: base, Policy: p}
			var more []float64
			for b.Loop() {
				bare := measure(base, 512)
				more = append(more, measure(tr, 512)-bare)
			}
			slices.Sort(more)
			median := more[len(more)/2]
			b.ReportMetric(median, "ns/read")
			// A Read of 32 KiB takes 32.8 µs at 1 GB/s.
			b.ReportMetric(100*median/(32<<10), "%of1GB/s")
			b.ReportMetric(0, "ns/op")
			if math.IsNaN(median) {
				b.Fatal("no rounds")
			}
		})
	}
}
