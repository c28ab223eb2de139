// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// exact reports whether resp, which is said to continue r at a byte, describes exactly
// the bytes of l, by a reading of the header fields other than the code's.
func exact(r Representation, at int64, resp *http.Response, l Landing) bool {
	h := resp.Header
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return false
		}
	}
	switch {
	case strings.Join(h["Etag"], "|") != `"a"`,
		strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Content-Type"))), "multipart/"),
		l.Skip < 0, l.Until <= at, l.Until > r.Last+1:
		return false
	case resp.StatusCode == 200:
		return l == Landing{Skip: at, Until: r.Last + 1, Whole: true} && resp.ContentLength == r.total
	}
	said := strings.ToLower(strings.Join(h["Content-Range"], "|"))
	total, ok := strings.CutPrefix(said, fmt.Sprintf("bytes %d-%d/", at-l.Skip, l.Until-1))
	return ok && resp.StatusCode == 206 && l.Skip <= overlapMost && l.Until-(at-l.Skip) == resp.ContentLength &&
		(r.total < 0 || total == "*" || total == fmt.Sprint(r.total))
}

// TestAccept_Mutants changes the header fields of correct
// responses many times, each once or more. An accepted response must
// describe exactly the bytes that the reader has to get. If only one field was
// changed, the description must also be true.
func TestAccept_Mutants(t *testing.T) {
	testenv.OneGoroutine(t)
	runs := testenv.Size(100_000, 1_000_000)
	m := testenv.Mutator{Rand: rand.New(rand.NewPCG(16, 206))}
	accepted := 0
	for i := range runs {
		total := 1 + m.Int64N([]int64{10, 1000, 1 << 20, 1 << 40}[m.IntN(4)])
		r := Representation{etag: `"a"`, Last: total - 1, total: total}
		if m.IntN(3) == 0 {
			r.First = m.Int64N(total)
			r.Last = r.First + m.Int64N(total-r.First)
		}
		if m.IntN(4) == 0 {
			r.total = -1
		}
		at := r.First + m.Int64N(r.Last-r.First+1)
		first := max(0, at-[]int64{0, 0, 1, 100, overlapMost}[m.IntN(5)])
		last := at + m.Int64N(r.Last-at+1)
		if m.IntN(2) == 0 {
			last = r.Last
		}
		of := []string{fmt.Sprint(total), fmt.Sprint(total), "*"}[m.IntN(3)]
		h := http.Header{"Etag": {`"a"`}, "Content-Range": {fmt.Sprintf("bytes %d-%d/%s", first, last, of)}}
		resp := &http.Response{StatusCode: 206, Header: h, ContentLength: last - first + 1}
		changes := m.IntN(5)
		for range changes {
			m.Mutate(h)
		}
		l, refusal := r.Accept(resp, at)
		if refusal != "" {
			require.Positive(t, changes, "%d: refused %s: %+v at %d: %v", i, refusal, r, at, h)
			continue
		}
		accepted++
		if !exact(r, at, resp, l) || changes == 1 && (at-l.Skip != first || l.Until != last+1) {
			t.Fatalf("%d: accepted %+v: %+v at %d, true is %d-%d/%d: %v", i, l, r, at, first, last, total, h)
		}
	}
	assert.Greater(t, accepted, runs/5)
	assert.Less(t, accepted, runs*2/3)
}
