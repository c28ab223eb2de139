// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/ybbus/httpretry"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

//retrip:promise P6
func TestPOSTIsRepeatedAfter503(t *testing.T) {
	scene(t, map[string]int{goRetryable: 5, reHTTP: 4, failsafeGo: 3, heimdallLib: 5, httpRetry: 6, ours: 1},
		always(503), func(t *testing.T, c doer, s *server) int {
			do(c, request(t, http.MethodPost, strings.NewReader("charge")))
			return len(s.at)
		})
}

//retrip:promise P3
func TestLastResponseIsReturned(t *testing.T) {
	scene(t, map[string]int{goRetryable: 0, reHTTP: 503, failsafeGo: 0, heimdallLib: 503, httpRetry: 503, ours: 503},
		always(503), func(t *testing.T, c doer, _ *server) int {
			status, _ := do(c, request(t, http.MethodGet, nil))
			return status
		})
}

//retrip:promise P9
func TestRetryAfterOn503IsObeyed(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, reHTTP: false, failsafeGo: true, heimdallLib: false, httpRetry: false, ours: true},
		then(503, "Retry-After", "20"), waitsTwentySeconds)
}

func TestRetryAfterIsSpread(t *testing.T) {
	scene(t, map[string]bool{goRetryable: false, failsafeGo: false, ours: true},
		then(503, "Retry-After", "20"), func(t *testing.T, c doer, s *server) bool {
			get(t, c)
			return s.at[1] != 20*time.Second
		})
}

func waitsTwentySeconds(t *testing.T, c doer, s *server) bool {
	get(t, c)
	return s.at[1] >= 20*time.Second
}

// A bubble starts at 2000-01-01 00:00:00 UTC.
func TestRetryAfterAsADateIsObeyed(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, failsafeGo: false, ours: true},
		then(503, "Retry-After", "Sat, 01 Jan 2000 00:00:20 GMT"), waitsTwentySeconds)
}

func TestRetryAfterAsAnObsoleteDateIsObeyed(t *testing.T) {
	scene(t, map[string]bool{goRetryable: false, failsafeGo: false, ours: true},
		then(503, "Retry-After", "Saturday, 01-Jan-00 00:00:20 GMT"), waitsTwentySeconds)
}

func TestRetryAfterOfADayIsWaitedFor(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, reHTTP: false, failsafeGo: true, heimdallLib: false, httpRetry: false, ours: false},
		then(503, "Retry-After", "86400"), func(t *testing.T, c doer, _ *server) bool {
			start := time.Now()
			do(c, request(t, http.MethodGet, nil))
			return time.Since(start) >= 24*time.Hour
		})
}

// TestWaitBeyondTheDeadlineIsBegun records what a client returns if the context
// ends in half a second and the wait would be longer.
//
//retrip:promise P10
func TestWaitBeyondTheDeadlineIsBegun(t *testing.T) {
	scene(t, map[string]time.Duration{
		goRetryable: 500 * time.Millisecond, reHTTP: 500 * time.Millisecond, failsafeGo: 500 * time.Millisecond,
		heimdallLib: 10 * time.Second, // all waits, and one after the last attempt: it ignores the context
		httpRetry:   500 * time.Millisecond, ours: 0,
	}, always(503, "Retry-After", "10"), func(t *testing.T, c doer, _ *server) time.Duration {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		start := time.Now()
		do(c, request(t, http.MethodGet, nil).WithContext(ctx))
		return time.Since(start).Truncate(500 * time.Millisecond)
	})
}

// stream is a body that can be read only once, and counts its reads.
type stream struct{ *bytes.Reader }

//retrip:promise P7
func TestStreamIsReadBeforeTheFirstAttempt(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: false},
		always(200), func(t *testing.T, c doer, s *server) bool {
			upload := stream{bytes.NewReader(make([]byte, 1<<20))}
			var early bool
			s.arrive = func() { early = upload.Len() < 1<<20 }
			_, err := do(c, request(t, http.MethodPut, struct{ io.Reader }{upload}))
			require.NoError(t, err)
			require.Len(t, s.bodies[0], 1<<20)
			return early
		})
}

//retrip:promise P2
func TestBodyOfTheRequestIsReplaced(t *testing.T) {
	scene(t, map[string]bool{reHTTP: true, failsafeGo: true, httpRetry: true, ours: false},
		then(503), func(t *testing.T, c doer, _ *server) bool {
			req := request(t, http.MethodPut, struct{ io.Reader }{strings.NewReader("body")})
			before := req.Body
			// http.Client passes a copy of the request to its Transport.
			resp, err := c.(*http.Client).Transport.RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
			return req.Body != before
		})
}

// TestDiscardedBodyIsReadToItsEnd records how much of a 503 with 64 MiB was
// read. The extra byte shows whether 256 KiB were the limit.
//
//retrip:promise P12
func TestDiscardedBodyIsReadToItsEnd(t *testing.T) {
	const size = 64 << 20
	scene(t, map[string]int64{goRetryable: 4 << 10, reHTTP: size, failsafeGo: 0, heimdallLib: 0, httpRetry: 16 << 10, ours: 256<<10 + 1},
		thenBody(503, size), func(t *testing.T, c doer, s *server) int64 {
			get(t, c)
			return s.given[0].read
		})
}

//retrip:promise P12
func TestDiscardedBodyIsClosed(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, reHTTP: true, failsafeGo: false, heimdallLib: true, httpRetry: true, ours: true},
		then(503), func(t *testing.T, c doer, s *server) bool {
			get(t, c)
			return s.given[0].closed
		})
}

// TestSmallErrorBodyKeepsItsConnection records whether 64 KiB are read to their
// end; otherwise net/http closes the connection.
//
//retrip:promise P12
func TestSmallErrorBodyKeepsItsConnection(t *testing.T) {
	const size = 64 << 10
	scene(t, map[string]bool{goRetryable: false, reHTTP: true, failsafeGo: false, heimdallLib: false, httpRetry: false, ours: true},
		thenBody(503, size), func(t *testing.T, c doer, s *server) bool {
			get(t, c)
			return s.given[0].read >= size
		})
}

// TestDeadHostIsRetriedForEver records how many attempts 100 requests send to a
// host that is down.
//
//retrip:promise P14
func TestDeadHostIsRetriedForEver(t *testing.T) {
	scene(t, map[string]int{goRetryable: 500, reHTTP: 400, failsafeGo: 300, heimdallLib: 500, httpRetry: 600, ours: 107},
		always(503), func(t *testing.T, c doer, s *server) int {
			for range 100 {
				do(c, request(t, http.MethodGet, nil))
			}
			return len(s.at)
		})
}

//retrip:promise P8
func TestStatusesThatAreRetried(t *testing.T) {
	type claims = map[string]bool
	rows := map[int]claims{
		404: {goRetryable: false, reHTTP: false, failsafeGo: false, heimdallLib: false, httpRetry: false, ours: false},
		408: {goRetryable: false, reHTTP: false, failsafeGo: false, heimdallLib: false, httpRetry: true, ours: false},
		409: {goRetryable: false, reHTTP: false, failsafeGo: false, heimdallLib: false, httpRetry: true, ours: false},
		423: {goRetryable: false, reHTTP: false, failsafeGo: false, heimdallLib: false, httpRetry: true, ours: false},
		429: {goRetryable: true, reHTTP: false, failsafeGo: true, heimdallLib: false, httpRetry: true, ours: true},
		500: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: true},
		501: {goRetryable: false, reHTTP: true, failsafeGo: false, heimdallLib: true, httpRetry: false, ours: true},
		502: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: true},
		503: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: true},
		504: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: true},
		505: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: false, ours: true},
		507: {goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: true, ours: true},
	}
	for name, cell := range migrating(t) {
		for status, claims := range rows {
			if cell != "as configured" && !slices.Contains([]int{500, 502, 503, 504}, status) {
				assert.Equal(t, claims[name], listed(cell, status), "docs/migrating.md says of %s: %s", name, cell)
			}
		}
	}
	for status, claims := range rows {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			observe(t, claims, then(status), func(t *testing.T, c doer, s *server) bool {
				do(c, request(t, http.MethodGet, nil))
				return len(s.at) > 1
			})
		})
	}
}

// listed tells whether a list as "429, all 5xx but 501" has a status.
func listed(list string, status int) bool {
	list, except, _ := strings.Cut(list, " but ")
	code := strconv.Itoa(status)
	return strings.Contains(list, code) || status >= 500 && strings.Contains(list, "all 5xx") && except != code
}

// TestFirstWaitIsAlwaysTheSame records whether clients that fail together
// return together, within 10 %.
func TestFirstWaitIsAlwaysTheSame(t *testing.T) {
	scene(t, map[string]bool{goRetryable: true, reHTTP: true, failsafeGo: true, heimdallLib: true, httpRetry: false, ours: false},
		then(503), func(t *testing.T, c doer, s *server) bool {
			var least, most time.Duration
			for i := range 50 {
				s.at, s.opened = nil, time.Now()
				get(t, c)
				if wait := s.at[1]; i == 0 {
					least, most = wait, wait
				} else {
					least, most = min(least, wait), max(most, wait)
				}
			}
			return float64(most) <= 1.1*float64(least)
		})
}

//retrip:promise P4
func TestCloseIdleConnectionsReachesTheBase(t *testing.T) {
	transports := map[string]func(http.RoundTripper) http.RoundTripper{
		goRetryable: func(base http.RoundTripper) http.RoundTripper {
			c := retryablehttp.NewClient()
			c.HTTPClient.Transport = base
			return &retryablehttp.RoundTripper{Client: c}
		},
		reHTTP: func(base http.RoundTripper) http.RoundTripper {
			return rehttp.NewTransport(base, rehttp.RetryMaxRetries(1), rehttp.ConstDelay(0))
		},
		failsafeGo: func(base http.RoundTripper) http.RoundTripper {
			return failsafehttp.NewRoundTripper(base, failsafehttp.NewRetryPolicyBuilder().Build())
		},
		httpRetry: func(base http.RoundTripper) http.RoundTripper {
			return httpretry.NewCustomClient(&http.Client{Transport: base}).Transport
		},
		ours: func(base http.RoundTripper) http.RoundTripper { return &retrip.Transport{Base: base} },
	}
	claims := map[string]bool{}
	for name, wrap := range transports {
		s := &server{}
		(&http.Client{Transport: wrap(s)}).CloseIdleConnections()
		claims[name] = s.closed == 1
	}
	documented(t, claims)
}

// TestErrorTellsOfTheFirstAttemptToo records whether the error mentions a
// refused connection if later attempts were reset.
//
//retrip:promise P17
func TestErrorTellsOfTheFirstAttemptToo(t *testing.T) {
	claims := map[string]bool{goRetryable: false, failsafeGo: false, heimdallLib: false, httpRetry: false, ours: true}
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	reset := &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	scene(t, claims, always(200), func(t *testing.T, _ doer, _ *server) bool {
		name := t.Name()[strings.LastIndex(t.Name(), "/")+1:]
		_, err := do(clients[name](play.Base(play.Err(refused), play.Err(reset))), request(t, http.MethodGet, nil))
		require.Error(t, err)
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

func TestLogsWithoutBeingAsked(t *testing.T) {
	claims := map[string]bool{}
	for name, client := range clients {
		synctest.Test(t, func(t *testing.T) {
			claims[name] = printed(t, func() { do(client(&server{script: always(503)()}), request(t, http.MethodGet, nil)) }) != ""
		})
	}
	// Its logger was made with os.Stderr before any test, so clients has none.
	logger, ok := retryablehttp.NewClient().Logger.(*log.Logger)
	claims[goRetryable] = ok && logger.Writer() == os.Stderr
	documented(t, claims)
}

// printed returns what f writes to the program's output.
func printed(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	stdout, stderr := os.Stdout, os.Stderr
	defer func() {
		os.Stdout, os.Stderr = stdout, stderr
		log.SetOutput(stderr)
	}()
	os.Stdout, os.Stderr = file, file
	log.SetOutput(file)
	f()
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	return string(text)
}

// TestAttemptTimeoutCutsTheBody records what happens to a response whose
// headers arrive at once and whose body takes longer than an attempt may.
//
//retrip:promise P11
func TestAttemptTimeoutCutsTheBody(t *testing.T) {
	const limit = time.Second
	documented(t, map[string]bool{reHTTP: true, heimdallLib: true, ours: false})
	for name, tt := range map[string]struct {
		client func(base http.RoundTripper) doer
		want   bool
	}{
		reHTTP: {func(base http.RoundTripper) doer {
			transport := rehttp.NewTransport(base, rehttp.RetryMaxRetries(0), rehttp.ConstDelay(0))
			transport.PerAttemptTimeout = limit
			return &http.Client{Transport: transport}
		}, true},
		heimdallLib: {func(base http.RoundTripper) doer {
			return httpclient.NewClient(httpclient.WithHTTPClient(&http.Client{Transport: base, Timeout: limit}))
		}, true},
		ours: {func(base http.RoundTripper) doer {
			return &http.Client{Transport: &retrip.Transport{Base: base, Policy: retrip.Policy{AttemptTimeout: limit}}}
		}, false},
	} {
		play.Bubble(t, name, func(t *testing.T) {
			server := memhttp.NewServer(t, memhttp.HTTP1, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for range 3 {
					io.WriteString(w, "part")
					w.(http.Flusher).Flush()
					time.Sleep(limit)
				}
			}))
			req := play.MustRequest(t, http.MethodGet, server.URL, nil)
			resp, err := tt.client(server.Transport()).Do(req)
			require.NoError(t, err)
			_, err = io.ReadAll(resp.Body)
			resp.Body.Close()
			assert.Equal(t, tt.want, err != nil)
		})
	}
}
