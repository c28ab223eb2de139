// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package redact writes errors, URLs and names of hosts for people, without secrets.
package redact

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// most is how much of a text a log or an error shows: much of it may be what a server has sent.
const most = 1 << 10

// Error returns the text of err on one line, without the secrets of URLs. Of a long text, it
// returns the beginning and the end, where the cause is.
func Error(err error) string {
	text := err.Error()
	urls := urlsIn(err, nil)
	// Longest first: one URL may be a prefix of another.
	slices.SortFunc(urls, func(a, b string) int { return len(b) - len(a) })
	for _, u := range urls {
		clean := "(malformed URL)"
		if parsed, err := url.Parse(u); err == nil {
			clean = URL(parsed)
		}
		quoted := strconv.Quote(u)
		text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], clean)
		text = strings.ReplaceAll(text, u, clean)
	}
	text = bareURLs(text)
	if n := len(text); n > most {
		text = Short(text, most*3/4) + strings.ToValidUTF8(text[n-most/4:], "")
	}
	return Line(strings.ReplaceAll(text, "\n", "; "))
}

// bareURLs returns text without the userinfo, query and fragment of the URLs in it, which are
// only text, as in the errors of many a Base.
func bareURLs(text string) string {
	var b strings.Builder
	for {
		scheme, rest, found := strings.Cut(text, "://")
		b.WriteString(scheme)
		if !found {
			return b.String()
		}
		ends := " \t\n\"`<>"
		if strings.HasSuffix(strings.TrimRightFunc(scheme, unicode.IsLetter), "'") {
			ends += "'" // else it may be a part of the URL
		}
		whole := before(rest, ends)
		plain := before(whole, "?#")
		name := 1 + strings.LastIndexByte(before(plain, "/"), '@')
		query := whole[len(plain):]
		// The sentence around the URL goes on.
		b.WriteString("://" + plain[name:] + query[len(strings.TrimRight(query, ".,:;)]'")):])
		text = rest[len(whole):]
	}
}

// before returns s up to the first of chars.
func before(s, chars string) string {
	if i := strings.IndexAny(s, chars); i >= 0 {
		return s[:i]
	}
	return s
}

// urlsIn appends the URLs in err and in the errors that err wraps.
func urlsIn(err error, urls []string) []string {
	for err != nil {
		if u, ok := err.(*url.Error); ok && u.URL != "" {
			urls = append(urls, u.URL)
		}
		if e, ok := err.(interface{ Hidden() error }); ok {
			urls = urlsIn(e.Hidden(), urls)
		}
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, err := range joined.Unwrap() {
				urls = urlsIn(err, urls)
			}
			return urls
		}
		err = errors.Unwrap(err)
	}
	return urls
}

// Short returns text, or n bytes of it and an ellipsis.
func Short(text string, n int) string {
	if len(text) <= n {
		return text
	}
	return strings.ToValidUTF8(text[:n], "") + "…"
}

// URL returns u without userinfo, query and fragment, or the beginning of that.
func URL(u *url.URL) string {
	if u == nil {
		return ""
	}
	if u.Opaque != "" {
		return Short(u.Scheme, most) + ":"
	}
	clean := url.URL{Scheme: u.Scheme, Host: u.Host[strings.LastIndexByte(u.Host, '@')+1:], Path: u.Path, RawPath: u.RawPath}
	return Short(clean.String(), most)
}

// Name returns the name of a host or a pattern, or what stands in its place, without
// userinfo and query.
func Name(text string) string {
	if i := strings.LastIndexByte(text, '@'); i >= 0 {
		text = "…" + text[i:]
	}
	if name, _, found := strings.Cut(text, "?"); found {
		text = name + "?…"
	}
	return text
}

// Line returns text on one line: what can't be printed is escaped.
func Line(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}
