// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// net/http's HTTP/1 reads a body to its end, even if the body is longer than
// announced, and waits for that end, which may never come. The request ends on
// time nevertheless, if each Read returns.
//
//retrip:promise P11
func TestBody_EndsWithTheAttempt(t *testing.T) {
	const limit = 300 * time.Millisecond
	for name, set := range map[string]func(p *retrip.Policy){
		"AttemptTimeout": func(p *retrip.Policy) { p.AttemptTimeout, p.MaxAttempts = limit, 1 },
		"Deadline":       func(p *retrip.Policy) { p.Deadline = limit },
		"one attempt":    func(p *retrip.Policy) { p.Deadline, p.MaxAttempts = limit, 1 },
		"context":        func(*retrip.Policy) {},
	} {
		for kind, set2 := range map[string]func(r *http.Request, drip io.Reader){
			"longer":  func(r *http.Request, drip io.Reader) { r.Body, r.ContentLength = io.NopCloser(drip), 6 },
			"slow":    func(r *http.Request, drip io.Reader) { r.Body, r.ContentLength = io.NopCloser(drip), 1<<20 },
			"chunked": func(r *http.Request, drip io.Reader) { r.Body, r.ContentLength = io.NopCloser(drip), -1 },
			"section": func(r *http.Request, drip io.Reader) {
				r.Body, r.ContentLength = io.NopCloser(io.NewSectionReader(drip.(io.ReaderAt), 0, 1<<40)), 6
			},
			"GetBody": func(r *http.Request, drip io.Reader) {
				r.Body, r.ContentLength = io.NopCloser(drip), 6
				r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(drip), nil }
			},
		} {
			for _, proto := range play.Protos {
				t.Run(fmt.Sprintf("%s/%s/%s", name, kind, proto), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s := memhttp.NewServer(t, proto, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
							_, _ = io.Copy(io.Discard, r.Body)
							select {
							case <-r.Context().Done():
							case <-time.After(time.Hour):
							}
						}))
						base := s.Transport()
						defer base.CloseIdleConnections()
						req := play.MustRequest(t, "PUT", s.URL, nil)
						began := time.Now()
						set2(req, drip{began})
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						defer cancel()
						if name != "context" {
							ctx = t.Context()
						}
						tr := &retrip.Transport{Base: base, Policy: play.With(set)}
						_, err := tr.RoundTrip(req.WithContext(ctx))
						require.Error(t, err)
						assert.LessOrEqual(t, time.Since(began), limit+10*time.Millisecond, "%v", err)
						time.Sleep(2 * time.Minute)
					})
				})
			}
		}
	}
}

// drip yields a byte every 10 ms for a minute.
type drip struct{ began time.Time }

func (d drip) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	if time.Since(d.began) > time.Minute {
		return 0, io.EOF
	}
	return copy(p[:1], "x"), nil
}

func (d drip) ReadAt(p []byte, _ int64) (int, error) { return d.Read(p) }
