// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/testenv"
)

// version is what a file held from a moment on.
type version struct {
	since   time.Time
	content []byte
	mtime   time.Time
}

// origin is a server whose only validator is the date of its file. It may have
// several backends, each with a clock and a copy of the file of its own.
type origin struct {
	*rand.Rand
	copies []*backend
	deaf   bool // ignores If-Range
	asked  int
}

type backend struct {
	versions []version
	clock    time.Duration // how far the clock that makes Date is ahead
}

func (b *backend) at(t time.Time) version {
	now := b.versions[0]
	for _, v := range b.versions {
		if !v.since.After(t) {
			now = v
		}
	}
	return now
}

// change replaces the file at a moment, as the given way says.
func (b *backend) change(random *rand.Rand, at time.Time, fileClock, grain time.Duration, way string) {
	last := b.versions[len(b.versions)-1]
	content := bytes.Clone(last.content)
	switch way {
	case "both ends", "both ends, date kept":
		// A join anywhere between them would be neither version.
		content[0]++
		content[len(content)-1] += 2
	case "another length":
		content = append(content, 0)
		fallthrough
	default:
		for i := range content {
			content[i] = byte(random.Uint32())
		}
	}
	mtime := at.Add(fileClock).Truncate(grain)
	switch way {
	case "older":
		mtime = last.mtime.Add(-time.Duration(1+random.IntN(1e6)) * time.Second)
	case "all, date kept", "both ends, date kept":
		mtime = last.mtime
	}
	b.versions = append(b.versions, version{at, content, mtime})
}

// RoundTrip responds as http.FileServer does, with a Date of the backend's
// clock. A cache may respond instead, for a while.
func (o *origin) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(time.Duration(o.IntN(3000)) * time.Millisecond)
	b := o.copies[o.IntN(len(o.copies))]
	v := b.at(time.Now())
	if o.deaf {
		req = req.Clone(req.Context())
		req.Header.Del("If-Range")
	}
	resp := serveFile(req, v.content, "", v.mtime, time.Now().Add(b.clock))
	if o.asked++; o.asked == 1 && o.IntN(4) == 0 {
		// It comes from a cache, which may put its own Date in.
		age := o.IntN(1000)
		time.Sleep(time.Duration(age) * time.Second)
		resp.Header.Set("Age", strconv.Itoa(age+o.IntN(2)))
		if o.IntN(2) == 0 {
			resp.Header.Set("Date", time.Now().Add(b.clock).UTC().Format(http.TimeFormat))
		}
	}
	if n := o.IntN(2 * (1 + int(resp.ContentLength))); o.asked <= 3 && int64(n) < resp.ContentLength {
		resp.Body = io.NopCloser(io.MultiReader(io.LimitReader(resp.Body, int64(n)), iotest.ErrReader(io.ErrUnexpectedEOF)))
	}
	return resp, nil
}

// life is what became of a download.
type life struct{ old, broke, continued, whole, mixed bool }

// live downloads a file that changes in the given way at random moments, or
// never if there is none.
func live(t *testing.T, random *rand.Rand, way string) (l life) {
	o := &origin{Rand: random, deaf: random.IntN(3) == 0}
	start := time.Now()
	size := 1 + random.IntN([]int{100, 5000, 50_000}[random.IntN(3)])
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(random.Uint32())
	}
	// Half of the files are new when the download begins, and the clock of the
	// files may be up to 50 s behind that of the server, or ahead of it.
	fileClock := time.Duration(random.IntN(100)-50) * time.Second / time.Duration(1+random.IntN(100))
	grain := time.Duration(1+random.IntN(2)) * time.Second
	born := start.Add(-time.Duration(random.IntN([]int{3, 200, 1e6}[random.IntN(3)])) * time.Second)
	for range 1 + random.IntN(2) {
		b := &backend{versions: []version{{start, content, born.Add(fileClock).Truncate(grain)}}}
		b.clock = time.Duration(random.IntN(2000)-1000) * time.Millisecond
		o.copies = append(o.copies, b)
	}
	if way != "" {
		at := start
		for range 1 + random.IntN(4) {
			at = at.Add(time.Duration(random.IntN([]int{500, 5000, 200_000}[random.IntN(3)])) * time.Millisecond)
			each := o.copies[random.IntN(len(o.copies))]
			each.change(random, at, fileClock, grain, way)
		}
	}
	time.Sleep(time.Duration(random.IntN(5000)) * time.Millisecond)
	got, err := download(t, o, retrip.Policy{MaxAttempts: 8}, func(e retrip.Event) {
		l.broke = true
		l.continued = l.continued || e.Reason == "continued"
	})
	l.whole, l.mixed = err == nil, true
	l.old = born.Before(start.Add(-time.Hour))
	for _, b := range o.copies {
		for _, v := range b.versions {
			if bytes.HasPrefix(v.content, got) && (len(got) == len(v.content) || !l.whole) {
				l.mixed = false
			}
		}
	}
	return l
}

// TestDates_Lives downloads files from servers that send only dates. As long as
// every change gives a file the date of a clock, or any other date, no
// two versions are mixed: not if a file changes twice within a second, not with
// clocks that differ by almost a minute, not behind caches, not among
// backends. A change that keeps date and length shows in the bytes that are
// asked for twice, unless it leaves those as they were.
//
//retrip:promise P20
func TestDates_Lives(t *testing.T) {
	lives := testenv.Size(2000, 20_000)
	if testing.Short() || testenv.Race {
		lives = 300
	}
	for _, way := range []string{"", "all", "both ends", "another length", "older", "all, date kept", "both ends, date kept"} {
		t.Run(fmt.Sprintf("changed=%q", way), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var broke, continued, old, oldContinued, mixed int
				for seed := range uint64(lives) {
					l := live(t, rand.New(rand.NewPCG(seed, 110)), way)
					for n, is := range map[*int]bool{
						&broke: l.broke, &continued: l.continued, &mixed: l.mixed, &old: l.old && l.broke, &oldContinued: l.old && l.continued,
					} {
						if is {
							*n++
						}
					}
				}
				t.Logf("of %d bodies that broke, %d were continued, and %d mix two versions; of the %d of files older than an hour, %d were continued", broke, continued, mixed, old, oldContinued)
				assert.Greater(t, continued, broke/10)
				if way == "" {
					assert.Equal(t, old, oldContinued)
				}
				if way != "both ends, date kept" {
					assert.Zero(t, mixed)
				}
			})
		})
	}
}
