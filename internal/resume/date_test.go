// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"fmt"
	"math"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	changed = "Sun, 01 Nov 2026 10:00:00 GMT"
	minute  = "Sun, 01 Nov 2026 10:01:00 GMT" // later
	second  = "Sun, 01 Nov 2026 10:00:59 GMT" // too early
)

// A date is a validator only if it is a minute older than the response, and
// no other field makes it doubtful.
//
//retrip:promise P20
func TestStrongDate(t *testing.T) {
	req, err := http.NewRequest(http.MethodGet, "http://a.example/", nil)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		lines  []string
		strong bool
	}{
		"a minute later":                  {[]string{"Last-Modified: " + changed, "Date: " + minute}, true},
		"a second less":                   {[]string{"Last-Modified: " + changed, "Date: " + second}, false},
		"at once":                         {[]string{"Last-Modified: " + changed, "Date: " + changed}, false},
		"a file of the future":            {[]string{"Last-Modified: " + minute, "Date: " + changed}, false},
		"no Date":                         {[]string{"Last-Modified: " + changed}, false},
		"no Last-Modified":                {[]string{"Date: " + minute}, false},
		"two Dates":                       {[]string{"Last-Modified: " + changed, "Date: " + minute, "Date: " + minute}, false},
		"two Last-Modifieds":              {[]string{"Last-Modified: " + changed, "Last-Modified: " + changed, "Date: " + minute}, false},
		"not a date":                      {[]string{"Last-Modified: yesterday", "Date: " + minute}, false},
		"an empty date":                   {[]string{"Last-Modified: ", "Date: " + minute}, false},
		"an obsolete form":                {[]string{"Last-Modified: Sunday, 01-Nov-26 10:00:00 GMT", "Date: " + minute}, false},
		"an obsolete form of Date":        {[]string{"Last-Modified: " + changed, "Date: Sun Nov  1 10:01:00 2026"}, false},
		"another zone":                    {[]string{"Last-Modified: Sun, 01 Nov 2026 10:00:00 CET", "Date: " + minute}, false},
		"a wrong weekday":                 {[]string{"Last-Modified: Mon, 01 Nov 2026 10:00:00 GMT", "Date: " + minute}, false},
		"spaces":                          {[]string{"Last-Modified:  " + changed, "Date: " + minute}, false},
		"a strong ETag too":               {[]string{"Last-Modified: " + changed, "Date: " + minute, `ETag: "a"`}, true},
		"a weak ETag too":                 {[]string{"Last-Modified: " + changed, "Date: " + minute, `ETag: W/"a"`}, false},
		"an empty ETag too":               {[]string{"Last-Modified: " + changed, "Date: " + minute, "ETag: "}, false},
		"from a cache":                    {[]string{"Last-Modified: " + changed, "Date: Sun, 01 Nov 2026 11:00:00 GMT", "Age: 3540"}, true},
		"younger than a cache":            {[]string{"Last-Modified: " + changed, "Date: Sun, 01 Nov 2026 11:00:00 GMT", "Age: 3541"}, false},
		"from a cache for ever":           {[]string{"Last-Modified: " + changed, "Date: " + minute, "Age: 9223372036854775806"}, false},
		"Age too large":                   {[]string{"Last-Modified: " + changed, "Date: " + minute, "Age: 9223372036854775808"}, false},
		"Age below zero":                  {[]string{"Last-Modified: " + changed, "Date: " + minute, "Age: -1"}, false},
		"no Age in it":                    {[]string{"Last-Modified: " + changed, "Date: " + minute, "Age: "}, false},
		"two Ages":                        {[]string{"Last-Modified: " + changed, "Date: " + minute, "Age: 0", "Age: 0"}, false},
		"varies by anything":              {[]string{"Last-Modified: " + changed, "Date: " + minute, "Vary: Accept", "Vary: Origin, *"}, false},
		"varies by what stays":            {[]string{"Last-Modified: " + changed, "Date: " + minute, "Vary: Accept-Encoding"}, true},
		"of the first second (Nix, jib)":  {[]string{"Last-Modified: Thu, 01 Jan 1970 00:00:01 GMT", "Date: " + minute}, false},
		"of 1980 (zip, buildpacks)":       {[]string{"Last-Modified: Tue, 01 Jan 1980 00:00:01 GMT", "Date: " + minute}, false},
		"of 1985 (npm)":                   {[]string{"Last-Modified: Sat, 26 Oct 1985 08:15:00 GMT", "Date: " + minute}, false},
		"of the last second of 1989":      {[]string{"Last-Modified: Sun, 31 Dec 1989 23:59:59 GMT", "Date: " + minute}, false},
		"of 1990":                         {[]string{"Last-Modified: Mon, 01 Jan 1990 00:00:00 GMT", "Date: " + minute}, true},
		"of the year 0":                   {[]string{"Last-Modified: Sat, 01 Jan 0000 00:00:00 GMT", "Date: " + minute}, false},
		"of the year 9999, both":          {[]string{"Last-Modified: Fri, 31 Dec 9999 22:59:59 GMT", "Date: Fri, 31 Dec 9999 23:59:59 GMT"}, true},
		"of a leap second, which is none": {[]string{"Last-Modified: Sun, 01 Nov 2026 10:00:60 GMT", "Date: Sun, 01 Nov 2026 11:00:00 GMT"}, false},
	} {
		r, refusal := Of(req, fielded(200, append(c.lines, "Content-Length: 10")...))
		if !c.strong {
			assert.EqualValues(t, "no_validator", refusal, name)
			continue
		}
		assert.Empty(t, refusal, name)
		assert.True(t, (r.etag == "") != (r.date == ""), name)
	}
}

// A request for the rest by date also asks for the last bytes that the reader
// has.
//
//retrip:promise P20
func TestAsk_ByDate(t *testing.T) {
	r := Representation{date: changed, First: 100, Last: 99_999, total: 100_000}
	for at, from := range map[int64]int{100: 100, 101: 100, 4195: 100, 4196: 100, 4197: 101, 50_000: 45_904} {
		want := http.Header{"Range": {fmt.Sprintf("bytes=%d-99999", from)}, "If-Range": {changed}, "Accept-Encoding": {"identity"}}
		assert.Equal(t, want, r.Ask(nil, at), at)
	}
	assert.Zero(t, r.Repeats(100))
	assert.EqualValues(t, 4096, r.Repeats(math.MaxInt64))
	assert.Zero(t, Representation{etag: `"a"`}.Repeats(math.MaxInt64))
}

// TestAccept_ByDate has a wrong response for each rule.
//
//retrip:promise P20
func TestAccept_ByDate(t *testing.T) {
	r := Representation{date: changed, First: 0, Last: 99_999, total: 100_000}
	const at = 50_000
	part := []string{"Last-Modified: " + changed, "Content-Length: 54096", "Content-Range: bytes 45904-99999/100000"}
	swap := func(i int, line string) []string {
		lines := append([]string{}, part...)
		lines[i] = line
		return lines
	}
	for _, c := range []struct {
		name    string
		status  int
		lines   []string
		refusal Refusal
	}{
		{"the part", 206, part, ""},
		{"the part, dated before the first response", 206, append([]string{"Date: " + changed}, part...), ""},
		{"a date more", 206, append([]string{"Last-Modified: " + changed}, part...), RefusedChanged},
		{"a later date", 206, swap(0, "Last-Modified: Sun, 01 Nov 2026 10:00:01 GMT"), RefusedChanged},
		{"an earlier date", 206, swap(0, "Last-Modified: Sun, 01 Nov 2026 09:59:59 GMT"), RefusedChanged},
		{"the same date in another form", 206, swap(0, "Last-Modified: Sunday, 01-Nov-26 10:00:00 GMT"), RefusedChanged},
		{"no date", 206, part[1:], RefusedValidator},
		{"an ETag", 206, append([]string{`ETag: "a"`}, part...), RefusedChanged},
		{"a weak ETag", 206, append([]string{`ETag: W/"a"`}, part...), RefusedChanged},
		{"all of the length of the part", 206, swap(2, "Content-Range: bytes 45904-99999/*"), ""},
		{"another length", 206, swap(2, "Content-Range: bytes 45904-99999/100001"), RefusedChanged},
		{"nothing repeated", 206, []string{part[0], "Content-Length: 50000", "Content-Range: bytes 50000-99999/100000"}, RefusedContentRange},
		{"a byte too little repeated", 206, []string{part[0], "Content-Length: 54095", "Content-Range: bytes 45905-99999/100000"}, RefusedContentRange},
		{"nothing but what is repeated", 206, []string{part[0], "Content-Length: 4096", "Content-Range: bytes 45904-49999/100000"}, RefusedContentRange},
		{"more repeated, as of blocks", 206, []string{part[0], "Content-Length: 100000", "Content-Range: bytes 0-99999/100000"}, ""},
		{"gzip", 206, append([]string{"Content-Encoding: gzip"}, part...), RefusedEncoded},
		{"all of it", 200, []string{part[0], "Content-Length: 100000"}, RefusedRanges},
		{"all of another version", 200, []string{"Last-Modified: " + minute, "Content-Length: 100000"}, RefusedChanged},
		{"all of another length", 200, []string{part[0], "Content-Length: 100001"}, RefusedChanged},
		{"all of it, with an ETag", 200, []string{part[0], `ETag: "a"`, "Content-Length: 100000"}, RefusedChanged},
	} {
		l, refusal := r.Accept(fielded(c.status, c.lines...), at)
		assert.Equal(t, c.refusal, refusal, c.name)
		if refusal == "" {
			assert.GreaterOrEqual(t, l.Skip, r.Repeats(at), c.name)
		}
	}
}
