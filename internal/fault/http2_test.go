// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fault_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// What the frames with which a server answers the first request mean. A server that demands
// HTTP/1.1, or better TLS, isn't asked again over HTTP/2, and ENHANCE_YOUR_CALM says what a
// 429 says.
//
//retrip:promise P6 P8 P9
func TestHTTP2(t *testing.T) {
	type frames = func(w *play.H2Writer, stream uint32)
	reset := func(code uint32) frames { return func(w *play.H2Writer, s uint32) { w.Reset(s, code) } }
	goAway := func(code uint32) frames { return func(w *play.H2Writer, s uint32) { w.GoAway(s, code); w.Close() } }
	atFirst := func(code uint32) frames { return func(w *play.H2Writer, _ uint32) { w.GoAway(0, code); w.Close() } }
	const no, refused, cancel, calm, security, http11 = 0, 7, 8, 0xb, 0xc, 0xd
	for _, tt := range []struct {
		name      string
		answer    frames
		get, post bool          // it is sent again
		wait      time.Duration // before the GET is; 0 if net/http does it
	}{
		{"REFUSED_STREAM", reset(refused), true, true, 0},
		{"GOAWAY below the stream", func(w *play.H2Writer, _ uint32) { w.GoAway(0, no) }, true, true, 0},
		{"GOAWAY that takes the stream in", goAway(no), true, false, time.Second},
		{"CANCEL", reset(cancel), true, false, time.Second},
		{"ENHANCE_YOUR_CALM", reset(calm), true, false, 7 * time.Second},
		{"GOAWAY ENHANCE_YOUR_CALM", goAway(calm), true, false, 7 * time.Second},
		{"GOAWAY at first ENHANCE_YOUR_CALM", atFirst(calm), true, false, 7 * time.Second}, // net/http's error has only a text
		{"INADEQUATE_SECURITY", reset(security), false, false, 0},
		{"GOAWAY INADEQUATE_SECURITY", goAway(security), false, false, 0},
		{"GOAWAY at first INADEQUATE_SECURITY", atFirst(security), false, false, 0},
		{"HTTP_1_1_REQUIRED", reset(http11), false, false, 0},
		{"GOAWAY HTTP_1_1_REQUIRED", goAway(http11), false, false, 0},
		{"GOAWAY at first HTTP_1_1_REQUIRED", atFirst(http11), false, false, 0},
	} {
		for method, again := range map[string]bool{"GET": tt.get, "POST": tt.post} {
			for kind, body := range kinds {
				play.Bubble(t, tt.name+"/"+method+" "+kind, func(t *testing.T) {
					var seen atomic.Int32
					base, _ := play.H2Server(t, func(w *play.H2Writer, _ int, stream uint32) {
						if seen.Add(1) == 1 {
							tt.answer(w, stream)
							return
						}
						w.OK(stream)
					})
					start := time.Now()
					policy := retrip.Policy{Backoff: retrip.Backoff{Base: time.Second, ThrottleBase: 7 * time.Second, Jitter: retrip.NoJitter}}
					req, done := traced(t, play.MustRequest(t, method, "http://example.com/", body()))
					err := testenv.Try(&retrip.Transport{Base: base, Policy: policy}, req)
					if !again {
						assert.EqualValues(t, 1, seen.Load())
						assert.Equal(t, tt.get, done.Reason == retrip.ReasonNotIdempotent)
						assert.Error(t, err)
						return
					}
					assert.NoError(t, err)
					assert.EqualValues(t, 2, seen.Load())
					if method == "GET" && (kind == "none" || tt.wait > 0) {
						assert.Equal(t, tt.wait, time.Since(start))
					}
				})
			}
		}
	}
}
