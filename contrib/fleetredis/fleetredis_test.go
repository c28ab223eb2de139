// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// server is a redis-server that belongs to the test.
type server struct {
	address string
	path    string
	process *exec.Cmd
}

// start runs a redis-server at the given address, or at a free one. It skips
// the test if there is no redis-server.
func start(t *testing.T, address string, args ...string) *server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if path, err = exec.LookPath("valkey-server"); err != nil {
			t.Skip("neither redis-server nor valkey-server is installed: .ci/tools redis-server")
		}
	}
	if address == "" {
		address, _ = free(t)
	}
	s := &server{address: address, path: path}
	out := s.run(t, append([]string{"--dir", t.TempDir()}, args...)...)
	t.Cleanup(func() { s.kill() })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if strings.Contains(lines.Text(), "eady to accept connections") {
			go io.Copy(io.Discard, out)
			return s
		}
	}
	t.Fatal("redis-server has ended")
	return nil
}

// free returns a free address, and its port.
func free(t *testing.T) (address, port string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	address = l.Addr().String()
	_, port, err = net.SplitHostPort(address)
	require.NoError(t, err)
	return address, port
}

// run starts the server and doesn't wait until it answers.
func (s *server) run(t *testing.T, args ...string) (log io.Reader) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.address)
	require.NoError(t, err)
	s.process = exec.Command(s.path, append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"}, args...)...)
	log, err = s.process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.process.Start())
	return log
}

func (s *server) kill() {
	if s.process.ProcessState == nil {
		s.process.Process.Signal(os.Interrupt)
		s.process.Process.Kill()
		s.process.Wait()
	}
}

func dial(t *testing.T, address string, o Options) *Store {
	t.Helper()
	s, err := Dial(&redis.UniversalOptions{Addrs: []string{address}}, o)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func add(t *testing.T, s *Store, host string, tokens, size float64) float64 {
	t.Helper()
	level, err := s.Add(t.Context(), host, tokens, size)
	require.NoError(t, err)
	return level
}

func TestStore(t *testing.T) {
	s := dial(t, start(t, "").address, Options{Fleet: "shop"})
	const host = "api.example.com:443"
	key := "retrip:shop:0:" + host
	assert.Equal(t, 500.0, add(t, s, host, 0, 500))
	assert.Equal(t, 500.0, add(t, s, host, 20, 500))
	assert.Zero(t, s.client.Exists(t.Context(), key).Val(), "a full account has no key")
	assert.Equal(t, 499.0, add(t, s, host, -1, 500))
	assert.InDelta(t, 60, s.client.PTTL(t.Context(), key).Val().Seconds(), 5)
	assert.Equal(t, 0.0, add(t, s, host, -1e9, 500))
	assert.Equal(t, 0.3, add(t, s, host, 0.3, 500))
	assert.Equal(t, 500.0, add(t, s, host, 1e300, 500))
	assert.Zero(t, s.client.Exists(t.Context(), key).Val())

	// No host name reaches another account.
	other := dial(t, s.client.(*redis.Client).Options().Addr, Options{Fleet: "shop2"})
	for _, host := range []string{"a:443", "0:a:443", "{x}:1", "\r\nFLUSHALL\r\n:1", "*:1", strings.Repeat("x", 255)} {
		assert.Equal(t, 490.0, add(t, s, host, -10, 500), "%q", host)
		assert.Equal(t, 500.0, add(t, other, host, 0, 500), "%q", host)
	}
}

func TestOptions(t *testing.T) {
	for _, test := range []struct {
		options Options
		want    string
	}{
		{Options{Fleet: "a:b"}, `Options.Fleet is "a:b"`},
		{Options{Fleet: strings.Repeat("x", 65)}, "Options.Fleet"},
		{Options{Shards: -1}, "Options.Shards is -1: it must be 1 to 1000"},
		{Options{Shards: 1001}, "Options.Shards is 1001"},
	} {
		_, err := Dial(&redis.UniversalOptions{}, test.options)
		assert.ErrorContains(t, err, test.want)
	}
	_, err := Dial(nil, Options{})
	assert.Error(t, err)
	_, err = New(nil, Options{})
	assert.Error(t, err)
}

// A connection is there before the first operation: in an outage all processes
// of a fleet need one at the same time.
func TestDial_ConnectsAhead(t *testing.T) {
	s := dial(t, start(t, "").address, Options{})
	assert.Eventually(t, func() bool { return s.client.PoolStats().IdleConns == 1 }, 10*time.Second, 10*time.Millisecond)
}

// down is a host that always answers 503.
var down = testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 503, Body: http.NoBody, Request: r}, nil
})

// Real Transports use a store that works, is killed, is stopped and is started
// again. No request waits for it for more than 50 ms.
//
//retrip:promise P22
func TestFleet(t *testing.T) {
	srv := start(t, "")
	store := dial(t, srv.address, Options{})
	fleet := retrip.NewFleet(store.Add)
	defer fleet.Close()
	var mu sync.Mutex
	reasons := map[retrip.Reason]int{}
	request := func(host string) {
		t.Helper()
		tr := &retrip.Transport{Base: down, Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, FleetBudget: 10, Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}},
			Trace: &retrip.Trace{Done: func(e retrip.Event) {
				mu.Lock()
				defer mu.Unlock()
				reasons[e.Reason]++
			}}}
		testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, "http://"+host+"/", nil))
	}
	request("warm.example") // the connection is open, or will be soon
	for range 60 {
		request("down.example")
	}
	assert.Positive(t, reasons[retrip.ReasonFleetBudget], "the account is empty, and decides")
	stop(t, srv)
	clear(reasons)
	for i := range 100 {
		request(fmt.Sprintf("%d.example", i))
	}
	assert.Equal(t, map[retrip.Reason]int{retrip.ReasonMaxAttempts: 100}, reasons, "the budgets alone")
	cont(t, srv)
	srv.kill()
	for i := range 100 {
		request(fmt.Sprintf("%d.example", 100+i))
	}
	assert.Equal(t, map[retrip.Reason]int{retrip.ReasonMaxAttempts: 200}, reasons)
}

func TestStore_Close(t *testing.T) {
	srv := start(t, "")
	s := dial(t, srv.address, Options{})
	add(t, s, "a:443", -1, 500)
	require.NoError(t, s.Close())
	_, err := s.Add(t.Context(), "a:443", -1, 500)
	assert.True(t, errors.Is(err, redis.ErrClosed), "%v", err)

	client := redis.NewClient(&redis.Options{Addr: srv.address})
	defer client.Close()
	given, err := New(client, Options{})
	require.NoError(t, err)
	require.NoError(t, given.Close())
	assert.NoError(t, client.Ping(t.Context()).Err(), "a client of the caller stays open")
}
