// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/resume"
	"github.com/retrip/retrip/internal/testenv"
)

const reset = syscall.ECONNRESET

// However a body breaks, its rest is requested and follows, over any Base.
//
//retrip:promise P20
func TestResume(t *testing.T) {
	now := retrip.Policy{BodyIdleTimeout: time.Second, Backoff: retrip.Backoff{Base: 1, Cap: 1}}
	noHeader := func(resp *http.Response) { resp.Header = nil }
	nothing := func(r io.Reader) io.Reader {
		n := 0
		return testenv.Reader(func(p []byte) (int, error) {
			if n++; n%3 != 0 {
				return 0, nil
			}
			return r.Read(p)
		})
	}
	wrong := func(n int) change {
		return reads(func(io.Reader) io.Reader { return testenv.Reader(func([]byte) (int, error) { return n, nil }) })
	}
	runDownloads(t, []download{
		{name: "unexpected EOF", want: continued, told: []string{"500 2"}, asks: 2, spared: 500},
		{name: "EOF", first: breaks(500, io.EOF), want: continued, asks: 2},
		{name: "reset", first: breaks(500, reset), want: continued, asks: 2},
		{name: "another error", first: breaks(500, errors.New("stream error")), want: continued, asks: 2},
		{name: "stalls, each over another connection", policy: now, size: 5000, first: stall(1000), then: []change{stall(2000)},
			want: continued, told: []string{"1000 2", "3000 2"}, stalls: 2, counts: []string{"retries_total{default,timeout} 2", "requests_total{default,answered} 1"}, upTo: 3001 * time.Millisecond, spared: 4000},
		{name: "the error comes with the last bytes", first: all(cut(300), reads(iotest.DataErrReader)), then: []change{all(cut(300), reads(iotest.DataErrReader))}, want: continued},
		{name: "one byte at a time", first: all(cut(300), reads(iotest.OneByteReader)), then: []change{all(cut(300), reads(iotest.OneByteReader))}, want: continued},
		{name: "Reads of nothing", policy: now, first: all(cut(300), reads(nothing)), then: []change{reads(nothing)}, want: continued},
		{name: "more is announced than there is", first: length(1010), again: true, got: 1000, want: resume.RefusedProgress,
			then: []change{all(answer(206, `ETag: "a"`, "Content-Range: bytes 1000-1009/1010"), content(nil), length(10))}},
		{name: "a negative length", first: all(length(-5), cut(500)), want: resume.RefusedLength},
		{name: "the smallest length", first: all(length(math.MinInt64), cut(500)), want: resume.RefusedLength},
		{name: "no header at all", first: all(noHeader, cut(500)), want: resume.RefusedValidator},
		{name: "the rest has no header", then: []change{noHeader}, want: resume.RefusedValidator},
		{name: "no ETag", first: all(del("ETag"), breaks(500, reset)), err: reset, told: []string{"500 1"}, spared: -1, want: resume.RefusedValidator},
		{name: "less is announced than there is", first: all(length(300), breaks(700, reset)), err: reset, got: 700, asks: 1},
		{name: "a negative count of a Read", policy: now, first: wrong(-1), got: -1, text: "a wrong count"},
		{name: "a negative count of a Read of the rest", then: []change{wrong(-1)}, text: "a wrong count", want: continued},
		{name: "a large count of a Read", first: wrong(1 << 20), got: -1, text: "a wrong count"},
		{name: "a large count of a Read of the rest", policy: now, then: []change{wrong(1 << 20)}, text: "a wrong count", want: continued},
		{name: "the caller's deadline", first: stall(500), deadline: time.Second, err: context.DeadlineExceeded, text: "deadline", asks: 1, upTo: time.Second, want: retrip.ReasonDeadline},
		{name: "the caller goes", first: stall(500), leaves: time.Second, err: context.Canceled, text: "canceled", asks: 1, upTo: time.Second, want: retrip.ReasonCanceled},
		{name: "the caller goes, without an ETag", first: all(del("ETag"), stall(500)), leaves: time.Second, err: context.Canceled, text: "canceled", asks: 1, want: retrip.ReasonCanceled},
	})
}

// With BodyIdleTimeout, a slow body isn't a stall, if each byte comes in time. Without it,
// nothing is watched, wherever the body is read.
//
//retrip:promise P20
func TestResume_SlowBody(t *testing.T) {
	dribble := func(every time.Duration) change {
		return func(resp *http.Response) {
			ctx := resp.Request.Context()
			reads(func(r io.Reader) io.Reader {
				return testenv.Reader(func(p []byte) (int, error) {
					select {
					case <-time.After(every):
						return r.Read(p[:1])
					case <-ctx.Done():
						return 0, ctx.Err()
					}
				})
			})(resp)
		}
	}
	policy := retrip.Policy{BodyIdleTimeout: time.Second, MaxAttempts: 10, Budget: retrip.Off}
	runDownloads(t, []download{
		{name: "in time", policy: policy, first: dribble(time.Second - time.Millisecond), asks: 1},
		{name: "too late", policy: policy, first: dribble(2 * time.Second), again: true, got: -1, err: context.DeadlineExceeded, most: 14, stalls: -1, upTo: time.Minute + 3*time.Second, want: resume.RefusedProgress},
		{name: "off", policy: retrip.Policy{Resume: 24 * time.Hour, BodyIdleTimeout: retrip.Off, Classify: peeks}, first: all(dribble(time.Minute), breaks(500, reset)), want: continued},
	})
}

// Classify judges the break and the response to the request for the rest. It may see the
// break itself, with Peek.
func TestResume_Classify(t *testing.T) {
	judge := retrip.Policy{Classify: classify}
	verdict := func(v retrip.Verdict) []change { return []change{set("Verdict", strconv.Itoa(int(v)))} }
	peek := retrip.Policy{BodyIdleTimeout: time.Second, Classify: func(_ *http.Request, resp *http.Response, _ error) retrip.Verdict {
		_, _ = retrip.Peek(resp, 600)
		return retrip.ByRule
	}}
	runDownloads(t, []download{
		{name: "Retryable", policy: judge, then: verdict(retrip.Retryable), want: continued, asks: 3},
		{name: "Final", policy: judge, then: verdict(retrip.Final), want: continued, asks: 2},
		{name: "ByRule", policy: judge, then: verdict(retrip.ByRule), want: continued, asks: 2},
		{name: "Final for a break", policy: retrip.Policy{Classify: func(_ *http.Request, resp *http.Response, err error) retrip.Verdict {
			if resp == nil && err == io.ErrUnexpectedEOF {
				return retrip.Final
			}
			return retrip.ByRule
		}}, want: resume.RefusedError, asks: 1},
		{name: "Peek at a break", policy: peek, want: continued, asks: 2},
		{name: "Peek at a reset", policy: peek, first: breaks(500, reset), want: continued, asks: 2},
		{name: "Peek at a stall", policy: peek, first: stall(500), stalls: 1, want: continued, asks: 2},
	})
}

// A part that the caller requested arrives whole, in whatever form it was requested.
// Several parts break as without Resume, unless the server answers with the whole file.
func TestResume_CallersRanges(t *testing.T) {
	rows := []download{
		{ranged: "bytes=1000-"},
		{ranged: "bytes=-2000"},
		{ranged: "bytes=1000-2998", ends: 2999},
		{ranged: "bytes=1000-999999"},
		{ranged: "bytes= 1000-1999 ", ends: 2000},
		{ranged: "bytes=1000-1999,", ends: 2000, want: resume.RefusedStatus, text: "at byte 500: status"},
	}
	for i := range rows {
		d := &rows[i]
		d.name, d.size, d.begins = d.ranged, 3000, 1000
		if d.want == "" {
			d.want = continued
		}
	}
	runDownloads(t, append(rows, download{name: "all of it", size: 3000, ranged: "bytes=0-1500,100-", want: continued}))
}

// A server that sends the reader's bytes again has spared nothing.
func TestResume_SparedBytes(t *testing.T) {
	runDownloads(t, []download{
		{name: "the rest", want: continued, spared: 500},
		{name: "a block", then: []change{part(400, 1000)}, want: continued, spared: 400},
		{name: "all", then: []change{whole(1000)}, want: continued, spared: -1},
		{name: "a block, of a part", ranged: "bytes=300-", begins: 300, then: []change{part(600, 1000)}, want: continued, spared: 300},
		{name: "a block from before the part", ranged: "bytes=300-", begins: 300, then: []change{part(200, 1000)}, want: continued, spared: -1},
		{name: "all, of a part", ranged: "bytes=300-", begins: 300, first: cut(400), then: []change{whole(1000)}, want: continued, spared: -1},
	})
}

// Each continuation is a retry. It waits, asks the budget, obeys Retry-After, the breaker
// and the caller's deadline, and counts as an attempt until there has been progress.
//
//retrip:promise P20
func TestResume_IsRetry(t *testing.T) {
	two, ten := retrip.Policy{MaxAttempts: 2}, retrip.Policy{MaxAttempts: 10, Budget: retrip.Off}
	with := func(change func(*retrip.Policy)) retrip.Policy {
		p := ten
		change(&p)
		return p
	}
	down := func(after string) change { return answer(503, "Retry-After: "+after) }
	same := cut(1000)
	runDownloads(t, []download{
		{name: "attempts, switched off", policy: retrip.Policy{MaxAttempts: 1}, want: retrip.ReasonMaxAttempts, asks: 1},
		{name: "attempts anew after progress", size: 4000, first: same, then: []change{same, same}, want: continued, asks: 4},
		{name: "budget", policy: retrip.Policy{MaxAttempts: 10, Budget: 1}, between: busy(2, ""), want: continued, asks: 2, took: 1250 * time.Millisecond},
		{name: "attempts", policy: two, then: []change{down("7")}, want: continued, asks: 3, took: 7 * time.Second},
		{name: "Retry-After in a turn", policy: two, then: []change{down("17"), down("17")}, want: continued, asks: 4, took: 34 * time.Second},
		{name: "Retry-After of a 429 in a turn", policy: two, then: []change{answer(429, "Retry-After: 17"), answer(429, "Retry-After: 17")}, want: continued, asks: 4, took: 34 * time.Second},
		{name: "Retry-After beyond Resume", policy: retrip.Policy{Resume: 10 * time.Second, MaxAttempts: 2}, then: []change{down("17")}, want: resume.RefusedProgress, asks: 2},
		{name: "Retry-After beyond MaxWait in a turn", policy: two, then: []change{down("70")}, want: retrip.ReasonWaitTooLong, asks: 2},
		{name: "Retry-After", then: []change{down("7")}, want: continued, asks: 3, took: 7 * time.Second},
		{name: "Retry-After beyond MaxWait", then: []change{down("70")}, want: retrip.ReasonWaitTooLong, asks: 2},
		{name: "Policy.Deadline is none of a body's", policy: retrip.Policy{Deadline: time.Second}, then: []change{down("7")}, want: continued, asks: 3, took: 7 * time.Second},
		{name: "429", policy: ten, then: []change{answer(429, "Retry-After: 7")}, want: continued, took: 7 * time.Second},
		{name: "429 that names no time", policy: ten, then: []change{answer(429)}, want: continued},
		{name: "500", policy: ten, then: []change{answer(500), answer(500)}, want: continued},
		{name: "a pause", policy: ten, between: busy(1, "20"), want: continued, took: 20 * time.Second},
		{name: "a pause at the gate", policy: with(func(p *retrip.Policy) { p.Gate.Enabled = retrip.On }), between: busy(1, "20"), want: continued, took: 20 * time.Second},
		{name: "a pause that is too long", policy: with(func(p *retrip.Policy) { p.MaxWait = 5 * time.Second }), between: busy(1, "20"), want: retrip.ReasonHostPaused, upTo: time.Second},
		{name: "a breaker that opens", policy: with(func(p *retrip.Policy) { p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 3, OpenFor: time.Hour} }),
			then: []change{answer(503)}, again: true, want: resume.RefusedProgress, took: 50 * time.Second},
		{name: "a breaker that closes", policy: with(func(p *retrip.Policy) { p.Breaker = retrip.Breaker{Ratio: 0.5, MinVolume: 3, OpenFor: 7 * time.Second} }),
			then: []change{answer(503), answer(503), answer(503), answer(503)}, want: continued, took: 7 * time.Second},
		{name: "no time left", policy: ten, then: []change{down("7")}, deadline: 5 * time.Second, want: retrip.ReasonDeadline, upTo: time.Second},
	})
}

// Any progress starts the count of attempts and the time of Resume again, so a line
// that always breaks finishes. A host that answers and breaks without a byte is asked
// less and less often, until the time of Resume is over.
//
//retrip:promise P20
func TestResume_Attempts(t *testing.T) {
	most := func(n int) retrip.Policy {
		return retrip.Policy{MaxAttempts: n, Backoff: retrip.Backoff{Jitter: retrip.EqualJitter}}
	}
	const after, end = 50 * time.Second, time.Minute + time.Second
	runDownloads(t, []download{
		{name: "each byte", policy: most(2), size: 3000, first: cut(1), again: true, want: continued, most: 3000, took: time.Minute},
		{name: "each KiB", policy: most(2), size: 256 << 10, first: cut(1 << 10), again: true, want: continued, most: 256, upTo: time.Minute},
		{name: "each 64 KiB", policy: most(4), size: 4 << 20, first: cut(64 << 10), again: true, want: continued, most: 64, upTo: time.Minute},
		{name: "attempts before the headers count", policy: most(3), size: 100, first: answer(503), then: []change{cut(10)}, again: true, want: continued, most: 11, upTo: time.Minute},
		{name: "without a byte, then with", policy: most(10), size: 100, first: cut(10), then: []change{cut(0), cut(0), cut(0), cut(0), cut(0), cut(0)}, want: continued, most: 8, upTo: time.Minute},
		{name: "never a byte", policy: most(4), first: cut(0), again: true, want: resume.RefusedProgress, most: 17, got: -1, took: after, upTo: end},
		{name: "never a byte, many attempts", policy: most(1000), first: cut(0), again: true, want: resume.RefusedProgress, most: 17, got: -1, took: after, upTo: end},
		{name: "no more bytes", policy: most(4), first: cut(10), then: []change{cut(20), cut(0)}, again: true, want: resume.RefusedProgress, most: 19, got: 30, took: after, upTo: end},
	})
}

// A server may send the whole representation again only if nothing has been
// discarded before, so once. Over all continuations, at most as many bytes as
// the body has may be discarded.
//
//retrip:promise P20
func TestResume_Skips(t *testing.T) {
	again := func(n int64) change { return all(whole(1000), cut(n)) }
	second := func(from int, n int64) change { return all(part(from, 1000), cut(n)) }
	block := func(from int) []change {
		return []change{all(part(1000, 2000), cut(700)), all(part(from, 2000), cut(1000))}
	}
	runDownloads(t, []download{
		{name: "all, once", first: cut(100), then: []change{again(200), second(200, 1000)}, want: continued},
		{name: "all, twice", first: cut(100), then: []change{again(200), again(1000)}, want: resume.RefusedRanges, got: 200},
		{name: "all, twice, with nothing to skip", first: cut(0), then: []change{again(0), again(1000)}, want: continued},
		{name: "all, then a block", first: cut(100), then: []change{again(200), second(150, 1000)}, want: continued},
		{name: "a block, then all", first: cut(100), then: []change{second(50, 100), again(1000)}, want: resume.RefusedRanges, got: 150},
		{name: "as much as there is", first: cut(600), then: []change{second(0, 700), second(300, 1000)}, want: continued},
		{name: "a byte more", first: cut(600), then: []change{second(0, 700), second(299, 1000)}, want: resume.RefusedCost, got: 700},
		{name: "as much as there is of a part", size: 2000, ranged: "bytes=1000-", begins: 1000, first: cut(600), then: block(1300), want: continued},
		{name: "a byte more than of a part", size: 2000, ranged: "bytes=1000-", begins: 1000, first: cut(600), then: block(1299), want: resume.RefusedCost, got: 700},
	})
}

// BodyIdleTimeout also bounds the rest of a body that stalls before its reader gets
// it: while Classify looks at it, with WholeBody, and while an overlap is
// skipped.
func TestResume_RestStalls(t *testing.T) {
	const size = 300 << 10
	rest, block := []change{stall(50)}, []change{all(part(190_000, size), stall(50))}
	rows := []download{
		{name: "plain", then: rest},
		{name: "WholeBody", then: rest, policy: retrip.Policy{WholeBody: 64 << 10}},
		{name: "WholeBody of much", then: rest, policy: retrip.Policy{WholeBody: 100 << 10}},
		{name: "Peek", then: rest, policy: retrip.Policy{Classify: peeks}},
		{name: "WholeBody and Peek", then: rest, policy: retrip.Policy{WholeBody: 64 << 10, Classify: peeks}},
		{name: "skip of a block", then: block},
		{name: "skip of a block, Peek", then: block, policy: retrip.Policy{Classify: peeks}},
		{name: "skip of all, only once", then: []change{all(whole(size), stall(50)), whole(size)}, want: resume.RefusedRanges, text: "Policy.BodyIdleTimeout", err: context.DeadlineExceeded, got: 200_000},
	}
	for i := range rows {
		d := &rows[i]
		if d.want == "" {
			d.want = continued
		}
		d.size, d.first, d.asks, d.stalls, d.upTo = size, cut(200_000), 3, 1, 1501*time.Millisecond
		d.policy.BodyIdleTimeout, d.policy.Backoff = time.Second, retrip.Backoff{Base: 1, Cap: 1}
	}
	runDownloads(t, rows)
}
