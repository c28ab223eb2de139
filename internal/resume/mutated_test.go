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

	"github.com/retrip/retrip/internal/testenv"
)

// TestAccept_Mutants changes the header fields of correct
// responses many times, each once or more. An accepted response must
// describe exactly the bytes that the reader has to get. If only one field was
// changed, the description must also be true.
func TestAccept_Mutants(t *testing.T) {
	testenv.OneGoroutine(t)
	runs := testenv.Size(300_000, 1_000_000)
	if testing.Short() {
		runs = 100_000
	}
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
			if changes == 0 {
				t.Fatalf("%d: refused %s: %+v at %d: %v", i, refusal, r, at, h)
			}
			continue
		}
		accepted++
		said := strings.ToLower(strings.Join(h["Content-Range"], "|"))
		want := fmt.Sprintf("bytes %d-%d/", at-l.Skip, l.Until-1)
		rest, ok := strings.CutPrefix(said, want)
		switch {
		case !ok, r.total >= 0 && rest != "*" && rest != fmt.Sprint(r.total),
			strings.Join(h["Etag"], "|") != `"a"`,
			!allIdentity(h),
			strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Content-Type"))), "multipart/"),
			l.Skip < 0, l.Skip > overlapMost, l.Until <= at, l.Until > r.Last+1,
			l.Until-(at-l.Skip) != resp.ContentLength,
			changes == 1 && (at-l.Skip != first || l.Until != last+1):
			t.Fatalf("%d: accepted %+v: %+v at %d, true is %d-%d/%d: %v", i, l, r, at, first, last, total, h)
		}
	}
	assert.Greater(t, accepted, runs/5)
	assert.Less(t, accepted, runs*2/3)
}

// allIdentity reports whether a body with the header fields h has no content
// coding.
func allIdentity(h http.Header) bool {
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return false
		}
	}
	return true
}
