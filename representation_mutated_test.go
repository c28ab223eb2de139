// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
)

// mutator changes header fields of a 206 at random. The body and Content-Length
// are correct, because net/http checks the body against Content-Length.
type mutator struct{ *rand.Rand }

var (
	mutantTags      = []string{`"b"`, `W/"a"`, `a`, `"A"`, `"a`, `a"`, `""a""`, `"a" `, ` "a"`, ``, `""`, `"a","a"`, `"a"-gzip`, `w/"a"`, `*`}
	mutantEncodings = []string{"gzip", "br", "zstd", "identity", "IDENTITY", "", "identity, gzip", "x"}
	mutantTypes     = []string{"multipart/byteranges; boundary=x", "Multipart/ByteRanges", " multipart/mixed", "text/plain", "application/json"}
	mutantBytes     = "0123456789 -/*,;=+xbytes\t\x00é"
	mutantNumbers   = []string{"0", "1", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551616", "01", "1e3", "0x10", "", "*", "٣"}
)

// one returns one of the given strings.
func (m mutator) one(of []string) string { return of[m.IntN(len(of))] }

// mutate changes one thing in h.
func (m mutator) mutate(h http.Header) {
	cr := ""
	if v := h["Content-Range"]; len(v) > 0 {
		cr = v[0]
	}
	at := m.IntN(len(cr) + 1)
	switch m.IntN(12) {
	case 0: // changes a byte
		if at < len(cr) {
			cr = cr[:at] + string(mutantBytes[m.IntN(len(mutantBytes))]) + cr[at+1:]
		}
	case 1: // removes a byte
		if at < len(cr) {
			cr = cr[:at] + cr[at+1:]
		}
	case 2: // inserts a byte
		cr = cr[:at] + string(mutantBytes[m.IntN(len(mutantBytes))]) + cr[at:]
	case 3: // swaps two bytes
		if b := []byte(cr); len(b) > 1 {
			i, j := m.IntN(len(b)), m.IntN(len(b))
			b[i], b[j] = b[j], b[i]
			cr = string(b)
		}
	case 4: // changes a number
		parts := strings.FieldsFunc(cr, func(r rune) bool { return strings.ContainsRune(" -/", r) })
		if len(parts) > 0 {
			cr = strings.Replace(cr, parts[m.IntN(len(parts))], m.one(mutantNumbers), 1)
		}
	case 5: // changes case or spaces, or repeats the field
		cr = []string{strings.ToUpper(cr), strings.TrimSpace(cr), cr + " ", "\t" + cr, cr + ", " + cr, cr + "/" + cr}[m.IntN(6)]
	case 6:
		h["Content-Range"] = [][]string{nil, {}, {""}, {cr, cr}, {"", cr}}[m.IntN(5)]
		return
	case 7:
		h["Etag"] = []string{m.one(mutantTags)}
		return
	case 8:
		h["Etag"] = append(h["Etag"], m.one(append(mutantTags, `"a"`)))
		return
	case 9:
		h["Etag"] = nil
		return
	case 10:
		h["Content-Encoding"] = append(h["Content-Encoding"], m.one(mutantEncodings))
		return
	default:
		h["Content-Type"] = []string{m.one(mutantTypes)}
		return
	}
	h["Content-Range"] = []string{cr}
}

// TestRepresentationAccept_Mutants changes the header fields of correct
// responses many times, each once or more. An accepted response must
// describe exactly the bytes that the reader has to get. If only one field was
// changed, the description must also be true.
func TestRepresentationAccept_Mutants(t *testing.T) {
	testenv.OneGoroutine(t)
	runs := testenv.Size(300_000, 1_000_000)
	if testing.Short() {
		runs = 100_000
	}
	m := mutator{rand.New(rand.NewPCG(16, 206))}
	accepted := 0
	for i := range runs {
		total := 1 + m.Int64N([]int64{10, 1000, 1 << 20, 1 << 40}[m.IntN(4)])
		r := representation{etag: `"a"`, last: total - 1, total: total}
		if m.IntN(3) == 0 {
			r.first = m.Int64N(total)
			r.last = r.first + m.Int64N(total-r.first)
		}
		if m.IntN(4) == 0 {
			r.total = -1
		}
		at := r.first + m.Int64N(r.last-r.first+1)
		first := max(0, at-[]int64{0, 0, 1, 100, overlapMost}[m.IntN(5)])
		last := at + m.Int64N(r.last-at+1)
		if m.IntN(2) == 0 {
			last = r.last
		}
		of := []string{fmt.Sprint(total), fmt.Sprint(total), "*"}[m.IntN(3)]
		h := http.Header{"Etag": {`"a"`}, "Content-Range": {fmt.Sprintf("bytes %d-%d/%s", first, last, of)}}
		resp := &http.Response{StatusCode: 206, Header: h, ContentLength: last - first + 1}
		changes := m.IntN(5)
		for range changes {
			m.mutate(h)
		}
		l, refusal := r.accept(resp, at)
		if refusal != "" {
			if changes == 0 {
				t.Fatalf("%d: refused %s: %+v at %d: %v", i, refusal, r, at, h)
			}
			continue
		}
		accepted++
		said := strings.ToLower(strings.Join(h["Content-Range"], "|"))
		want := fmt.Sprintf("bytes %d-%d/", at-l.skip, l.until-1)
		rest, ok := strings.CutPrefix(said, want)
		switch {
		case !ok, r.total >= 0 && rest != "*" && rest != fmt.Sprint(r.total),
			strings.Join(h["Etag"], "|") != `"a"`,
			!allIdentity(h),
			strings.HasPrefix(strings.ToLower(strings.TrimSpace(h.Get("Content-Type"))), "multipart/"),
			l.skip < 0, l.skip > overlapMost, l.until <= at, l.until > r.last+1,
			l.until-(at-l.skip) != resp.ContentLength,
			changes == 1 && (at-l.skip != first || l.until != last+1):
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

// TestResume_Mutants does the same through a Transport: each response to a
// request for the rest has one field changed.
func TestResume_Mutants(t *testing.T) {
	runs := 10_000
	if testing.Short() || testenv.Race {
		runs = 1000
	}
	synctest.Test(t, func(t *testing.T) {
		m := mutator{rand.New(rand.NewPCG(17, 206))}
		data := randomBytes(3000, 1)
		whole := 0
		for i := range runs {
			s := &store{etag: `"a"`, data: data, at: func(i int) (int, error) {
				if i > 0 && m.IntN(2) == 0 {
					return -1, nil
				}
				return m.IntN(2000), io.ErrUnexpectedEOF
			}}
			s.lie = func(i int, resp *http.Response) {
				if i > 0 {
					m.mutate(resp.Header)
				}
			}
			got, err := fetch(t, &Transport{Base: s, Policy: Policy{Resume: On, Budget: Unlimited, MaxAttempts: 8}})
			if err == nil {
				whole++
				require.True(t, bytes.Equal(data, got), "%d", i)
			} else {
				require.ErrorIs(t, err, io.ErrUnexpectedEOF)
				require.True(t, bytes.HasPrefix(data, got), "%d", i)
			}
		}
		assert.Greater(t, whole, runs/50, "some changes change nothing")
		assert.Less(t, whole, runs/2)
		t.Log(whole, "whole")
	})
}
