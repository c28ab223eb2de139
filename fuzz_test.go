// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// FuzzRoundTrip plays a script of outcomes. The first bytes configure the
// request and the policy; each further pair is the outcome of an attempt.
//
//retrip:promise P1 P2 P6 P7 P9 P10
func FuzzRoundTrip(f *testing.F) {
	for _, seed := range []string{
		"\x00\x00\x00\x00\x00\x00", "\x01\x04\x00\x00\x01\x02\x03\x04\x05\x06", "\x12\x03\x07\x01\x00\x01\x10\x02\x20\x03",
		"\x25\x05\x02\x83\x04\x01\x05\x02\x06\x03\x07\x04\x08\x05", "\x3a\x02\x15\x40\x03\x09\x03\x0a\x03\xff", "\x07\x08\x30\x20\x01\x00\x01\x00\x01\x00\x01\x00\x01\x00",
		"\x0c\x04\x21\x00\x00\x05\x00\x05\x00\x05\x00\x05", "\x1f\x06\xff\xff\x02\x02\x02\x02\x02\x02\x02\x02", "\x42\x04\x00\x10\x07\x03\x08\x03\x09\x03",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		synctest.Test(t, func(t *testing.T) { fuzzRoundTrip(t, script) })
	})
}

func fuzzRoundTrip(t *testing.T, script []byte) {
	next := func() byte {
		if len(script) == 0 {
			return 0
		}
		b := script[0]
		script = script[1:]
		return b
	}
	kinds, attempts, times, options := next(), int(next()%8)+1, next(), next()
	p := retrip.Policy{
		MaxAttempts: attempts,
		Backoff:     retrip.Backoff{Base: time.Duration(times%8) * 100 * time.Millisecond, Cap: 5 * time.Second, Jitter: retrip.Jitter(times / 8 % 5)},
		MaxWait:     20 * time.Second,
	}
	if times&0x40 != 0 {
		p.Budget = retrip.Unlimited
	}
	if options&1 != 0 {
		p.Deadline = time.Duration(options>>4+1) * time.Second
	}
	if options&2 != 0 {
		p.AttemptTimeout = 700 * time.Millisecond
	}
	if options&4 != 0 {
		p.Breaker = retrip.Breaker{Ratio: .5, MinVolume: 3, OpenFor: 2 * time.Second}
	}
	if options&8 != 0 {
		p.Gate.Enabled = retrip.On
	}
	nested, lies := options&0x10 != 0, options&0x20 != 0

	const payload = "the request's body"
	faulty := lies && kinds&3 != 0 // the body is shorter than its request declares
	var body *play.SendBody
	var reader io.Reader
	if kinds&3 != 0 {
		body = play.NewSend(payload)
		reader = body
	}
	req := play.Request(t, []string{"GET", "PUT", "POST", "DELETE"}[kinds>>2&3], reader)
	if kinds&3 == 2 {
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(payload)), nil }
	}
	if kinds&3 == 3 {
		p.MaxReplayBody = 5
	}
	if faulty {
		req.ContentLength = int64(len(payload)) + 1
	}
	req.Header.Set("X-Mine", "1")
	ctx, cancel := context.WithCancelCause(req.Context())
	defer cancel(nil)
	begin := time.Now()
	var deadline time.Time
	if p.Deadline > 0 {
		deadline = begin.Add(p.Deadline)
	}
	if kinds&0x40 != 0 {
		at := begin.Add(time.Duration(kinds>>4) * time.Second)
		c, stop := context.WithDeadline(ctx, at)
		defer stop()
		ctx = c
		if deadline.IsZero() || at.Before(deadline) {
			deadline = at
		}
	}
	if kinds&0x80 != 0 {
		timer := time.AfterFunc(time.Duration(times)*50*time.Millisecond, func() { cancel(errors.New("gone")) })
		defer timer.Stop()
	}
	req = req.WithContext(ctx)
	header := req.Header.Clone()
	before := *req

	freed := make(chan struct{})
	defer close(freed)
	var notBefore time.Time // earliest instant for a retry, by Retry-After
	made := 0
	var bodies []*play.ReplyBody
	unsure := false // an attempt ended without proof that the request was not processed
	base := testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		made++
		for name, values := range r.Header {
			assert.NotEmpty(t, values, "%s isn't sent, and a Base that signs would sign it", name)
		}
		assert.NotContains(t, fmt.Sprintf("%v %+v", r.Context(), r.Context()), "X-Mine")
		if req.Method == http.MethodPost {
			assert.False(t, unsure, "a POST that may have been processed")
		}
		// The timeout of an outer Transport ends the wait of an inner one.
		assert.False(t, time.Now().Before(notBefore) && !nested, "attempt %d at %v, the server said not before %v", made, time.Now(), notBefore)
		if !deadline.IsZero() {
			assert.False(t, time.Now().After(deadline), "attempt %d after the deadline", made)
		}
		if r.Body != nil {
			got, err := io.ReadAll(r.Body)
			// The context may end at the instant at which the attempt begins.
			if r.Context().Err() == nil {
				assert.NoError(t, err)
			}
			if err == nil {
				assert.Equal(t, payload, string(got))
			} else {
				assert.ErrorIs(t, err, context.Cause(r.Context()))
			}
			_ = r.Body.Close()
		}
		kind, detail := next(), next()
		unsure = unsure || kind%16 != 10 && kind%16 != 11
		time.Sleep(time.Duration(detail%4) * 100 * time.Millisecond)
		if err := r.Context().Err(); err != nil {
			return nil, context.Cause(r.Context())
		}
		answer := func(status int) (*http.Response, error) {
			h := http.Header{}
			if detail&0x80 != 0 {
				seconds := int(detail & 0x1f)
				h.Set("Retry-After", fmt.Sprint(seconds))
				if status >= 500 || status == 429 {
					notBefore = time.Now().Add(time.Duration(seconds) * time.Second)
				}
			}
			b := play.NewReply(strings.NewReader("small"))
			switch detail >> 5 & 3 {
			case 1:
				b.R = play.Zeros{}
			case 2:
				// Some bodies ignore their Close.
				end := b.Done
				if detail&0x10 != 0 {
					end = freed
				}
				b.R = testenv.Reader(func([]byte) (int, error) { <-end; return 0, io.ErrUnexpectedEOF })
			case 3:
				b.R = testenv.Reader(func([]byte) (int, error) { return 0, io.ErrUnexpectedEOF })
			}
			bodies = append(bodies, b)
			return &http.Response{StatusCode: status, Header: h, ContentLength: -1, Body: b, Request: r}, nil
		}
		dial := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		switch kind % 16 {
		case 0:
			return answer(200)
		case 1, 2:
			return answer(503)
		case 3:
			return answer(429)
		case 4:
			return answer(500)
		case 5:
			return nil, io.ErrUnexpectedEOF
		case 6:
			if p.AttemptTimeout > 0 || !deadline.IsZero() || kinds&0x80 != 0 {
				return play.Hang(r)
			}
			return nil, nil
		case 7:
			return answer(404)
		case 8:
			return nil, http.ErrSchemeMismatch
		case 9:
			return answer(101)
		case 10:
			return nil, dial
		case 11:
			return nil, fmt.Errorf("%w, %w", dial, errors.Join(dial))
		case 12:
			return nil, errors.Join(dial, io.EOF)
		case 13:
			return nil, errors.Join(io.ErrUnexpectedEOF, fmt.Errorf("wrapped: %w", dial))
		case 14:
			return nil, play.StreamError{StreamID: 1, Code: uint32(detail & 3)}
		default:
			return answer(502)
		}
	})
	tr := &retrip.Transport{Base: base, Policy: p}
	if nested {
		// The history of the inner Transport is proof only if all of it is.
		tr = &retrip.Transport{Base: &retrip.Transport{Base: base, Policy: retrip.Policy{MaxAttempts: 2, Budget: retrip.Unlimited, AttemptTimeout: p.AttemptTimeout}}, Policy: p}
		attempts *= 2
	}
	resp, err := tr.RoundTrip(req)
	took := time.Since(begin)
	synctest.Wait() // a body that ignores its Close is closed in another goroutine

	assert.LessOrEqual(t, made, attempts)
	if kinds&3 == 3 && !nested || faulty {
		// More of the body was read than kept, or the body is at fault.
		assert.LessOrEqual(t, made, 1, "what must not be repeated")
	}
	assert.True(t, (resp == nil) != (err == nil), "a response or an error: %v, %v", resp, err)
	if !deadline.IsZero() {
		// An attempt of the script ignores the deadline for up to 300 ms.
		assert.LessOrEqual(t, took, deadline.Sub(begin)+400*time.Millisecond)
	}
	for i, b := range bodies {
		if resp != nil && i == len(bodies)-1 {
			assert.Zero(t, b.Closed.Load(), "the body of the response returned")
			_ = resp.Body.Close()
		} else {
			assert.Positive(t, b.Closed.Load(), "body %d was discarded", i)
		}
	}
	if body != nil {
		assert.EqualValues(t, 1, body.Closed.Load(), "request body")
	}
	if resp != nil {
		assert.Same(t, req, resp.Request)
	}
	assert.Equal(t, header, req.Header)
	assert.Equal(t, before.ContentLength, req.ContentLength)
	assert.Equal(t, before.GetBody == nil, req.GetBody == nil)
	var e *retrip.Error
	if errors.As(err, &e) {
		if !nested {
			assert.Equal(t, made, e.Attempts)
		}
	}
}
