// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
)

// contractEnv is the environment of a row of the contract: a protocol, and a
// Transport with default settings or with everything set.
type contractEnv struct {
	proto memhttp.Proto
	full  bool // with all options

	// unlimited switches the budget off, for a row with more failures than the
	// budget has tokens.
	unlimited bool
}

func (e contractEnv) transport(base http.RoundTripper) *retrip.Transport {
	if !e.full {
		tr := &retrip.Transport{Base: base}
		if e.unlimited {
			tr.Policy.Budget = retrip.Off
		}
		return tr
	}
	hook := func(retrip.Event) {}
	return &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			MaxAttempts: 4, Backoff: retrip.Backoff{Base: 50 * time.Millisecond, Cap: time.Second, Jitter: retrip.EqualJitter},
			Deadline: 10 * time.Minute, AttemptTimeout: time.Minute, MaxWait: 20 * time.Second, MaxReplayBody: 1 << 20,
			Budget: retrip.Off, Breaker: retrip.Breaker{Ratio: 1, MinVolume: 1000},
			Classify: func(*http.Request, *http.Response, error) retrip.Verdict { return retrip.ByRule },
		},
		Hosts:   map[string]retrip.Policy{"127.0.0.1": {Backoff: retrip.Backoff{Jitter: retrip.FullJitter}}, "*.example.com": {RetryOn: []int{408}}},
		Metrics: retrip.NewMetrics(),
		Logger:  slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Trace:   &retrip.Trace{Attempt: hook, Retry: hook, GiveUp: hook, Done: hook, Host: func(retrip.HostState) {}},
	}
}

// serve starts a server with the handler h and returns a Transport that reaches
// it.
func (e contractEnv) serve(t *testing.T, h http.HandlerFunc) (*memhttp.Server, *retrip.Transport) {
	s := memhttp.NewServer(t, e.proto, h)
	base := s.Transport()
	t.Cleanup(base.CloseIdleConnections)
	return s, e.transport(base)
}

// contractRow is a row of the contract. Its name begins with the number of the
// promise that it guards.
type contractRow struct {
	name string
	run  func(t *testing.T, e contractEnv)
}

func TestContract(t *testing.T) {
	for _, row := range slices.Concat(contractTransparent, contractSafe) {
		for _, full := range []bool{false, true} {
			for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS, memhttp.HTTP2, memhttp.H2C} {
				setUp := "zero"
				if full {
					setUp = "full"
				}
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", row.name, setUp, proto), func(t *testing.T) {
					row.run(t, contractEnv{proto: proto, full: full})
				})
			}
		}
	}
}

// An upgraded connection only exists over HTTP/1.1.
//
//retrip:promise P4 P11
func TestContract_P4_Upgrade(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, proto := range []memhttp.Proto{memhttp.HTTP1, memhttp.HTTPS} {
			play.Bubble(t, fmt.Sprint(full, proto), func(t *testing.T) {
				e := contractEnv{proto: proto, full: full}
				s, tr := e.serve(t, upgradeEcho)
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				req := play.MustRequest(t, "GET", s.URL, nil).WithContext(ctx)
				req.Header.Set("Connection", "Upgrade")
				req.Header.Set("Upgrade", "echo")
				resp, err := tr.RoundTrip(req)
				require.NoError(t, err)
				require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
				conn, ok := resp.Body.(io.ReadWriteCloser)
				require.True(t, ok)
				// Longer than every timeout of the Transport.
				play.LetPass(time.Hour)
				_, err = io.WriteString(conn, "hello\n")
				require.NoError(t, err)
				line, err := bufio.NewReader(conn).ReadString('\n')
				require.NoError(t, err)
				assert.Equal(t, "hello\n", line)
				require.NoError(t, conn.Close())
			})
		}
	}
}

func upgradeEcho(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + r.Header.Get("Upgrade") + "\r\n\r\n")
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

//retrip:promise P8
func TestContract_P8_Hopeless(t *testing.T) {
	for _, full := range []bool{false, true} {
		for _, proto := range []memhttp.Proto{memhttp.HTTPS, memhttp.HTTP2} {
			play.Bubble(t, fmt.Sprint(full, proto), func(t *testing.T) {
				s := memhttp.NewServer(t, proto, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
				base := s.Transport()
				base.TLSClientConfig = nil
				_, err := contractEnv{proto: proto, full: full}.transport(base).RoundTrip(play.MustRequest(t, "GET", s.URL, nil))
				var want *tls.CertificateVerificationError
				assert.ErrorAs(t, err, &want)
				assert.Equal(t, 1, s.Listener.Dials())
			})
		}
	}
}
