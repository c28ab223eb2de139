// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"math/rand/v2"
	"net/http"
	"strings"
)

// Mutator changes header fields of a 206 at random. The body and Content-Length
// are correct, because net/http checks the body against Content-Length.
type Mutator struct{ *rand.Rand }

var (
	mutantTags      = []string{`"b"`, `W/"a"`, `a`, `"A"`, `"a`, `a"`, `""a""`, `"a" `, ` "a"`, ``, `""`, `"a","a"`, `"a"-gzip`, `w/"a"`, `*`}
	mutantEncodings = []string{"gzip", "br", "zstd", "identity", "IDENTITY", "", "identity, gzip", "x"}
	mutantTypes     = []string{"multipart/byteranges; boundary=x", "Multipart/ByteRanges", " multipart/mixed", "text/plain", "application/json"}
	mutantBytes     = "0123456789 -/*,;=+xbytes\t\x00é"
	mutantNumbers   = []string{"0", "1", "-1", "9223372036854775807", "9223372036854775808", "18446744073709551616", "01", "1e3", "0x10", "", "*", "٣"}
)

// one returns one of the given strings.
func (m Mutator) one(of []string) string { return of[m.IntN(len(of))] }

// Mutate changes one thing in h.
func (m Mutator) Mutate(h http.Header) {
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
