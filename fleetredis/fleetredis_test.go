// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"bufio"
	"context"
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
)

// server is a redis-server that belongs to the test.
type server struct {
	address string
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
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		address = l.Addr().String()
		require.NoError(t, l.Close())
	}
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	s := &server{address: address, process: exec.Command(path, append([]string{"--port", port, "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no", "--dir", t.TempDir()}, args...)...)}
	out, err := s.process.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.process.Start())
	t.Cleanup(func() { s.kill() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.Contains(lines.Text(), "eady to accept connections") {
			go io.Copy(io.Discard, out)
			return s
		}
	}
	t.Fatal("redis-server has ended")
	return nil
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

	// The account after a minute, or at a server whose clock has jumped ahead,
	// is full.
	add(t, s, host, -100, 500)
	require.True(t, s.client.PExpireAt(t.Context(), key, time.Now().Add(-time.Hour)).Val())
	assert.Equal(t, 500.0, add(t, s, host, 0, 500))

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

// Any trouble of a server yields an error before the context ends. Operations
// succeed again when the server has recovered.
func TestStore_Troubles(t *testing.T) {
	srv := start(t, "", "--enable-debug-command", "yes")
	s := dial(t, srv.address, Options{})
	ctx, c := t.Context(), s.client
	const host = "a:443"
	fails := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		began := time.Now()
		_, err := s.Add(ctx, host, -1, 500)
		assert.ErrorContains(t, err, want)
		assert.Less(t, time.Since(began), 2*time.Second)
	}
	works := func() {
		t.Helper()
		assert.Eventually(t, func() bool {
			_, err := s.Add(ctx, host, -1, 500)
			return err == nil
		}, 10*time.Second, 20*time.Millisecond)
	}
	works()

	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "1").Err())
	fails("OOM")
	require.NoError(t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	works()

	require.NoError(t, c.SlaveOf(ctx, "127.0.0.1", "1").Err())
	fails("READONLY")
	require.NoError(t, c.SlaveOf(ctx, "NO", "ONE").Err())
	works()

	require.NoError(t, c.Del(ctx, s.prefix+host).Err())
	require.NoError(t, c.LPush(ctx, s.prefix+host, "x").Err())
	fails("WRONGTYPE")
	require.NoError(t, c.Del(ctx, s.prefix+host).Err())
	require.NoError(t, c.Set(ctx, s.prefix+host, "nonsense", 0).Err())
	fails("WRONGTYPE")
	require.NoError(t, c.Del(ctx, s.prefix+host).Err())
	works()

	require.NoError(t, c.ScriptFlush(ctx).Err())
	works() // the server has loaded its data

	stop(t, srv)
	fails("timeout")
	cont(t, srv)
	works()

	srv.kill()
	fails("")
	start(t, srv.address)
	works()
}

// While a server loads its data, it answers LOADING to almost all commands.
func TestStore_Loading(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					if strings.HasPrefix(lines.Text(), "*") {
						fmt.Fprint(conn, "-LOADING Redis is loading the dataset in memory\r\n")
					}
				}
			}()
		}
	}()
	s := dial(t, l.Addr().String(), Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = s.Add(ctx, "a:443", -1, 500)
	assert.ErrorContains(t, err, "LOADING")
}

type baseFunc func(*http.Request) (*http.Response, error)

func (f baseFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Real Transports use a store that works, is killed, is stopped and is started
// again. No request waits for it for more than 50 ms.
func TestFleet(t *testing.T) {
	srv := start(t, "")
	store := dial(t, srv.address, Options{})
	fleet := retrip.NewFleet(store)
	defer fleet.Close()
	base := baseFunc(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 503, Body: http.NoBody, Request: r}, nil
	})
	var mu sync.Mutex
	reasons := map[retrip.Reason]int{}
	request := func(host string) {
		t.Helper()
		tr := &retrip.Transport{Base: base, Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, FleetBudget: 10, Backoff: retrip.Backoff{Base: time.Millisecond, Cap: time.Millisecond}},
			Trace: &retrip.Trace{Done: func(e retrip.Event) {
				mu.Lock()
				defer mu.Unlock()
				reasons[e.Reason]++
			}}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+host+"/", nil)
		require.NoError(t, err)
		resp, err := tr.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
	}
	request("warm.example") // the connection is open, or will be soon
	for range 60 {
		request("down.example")
	}
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

// Two stores, like those of two processes, share an account.
func TestStore_Shared(t *testing.T) {
	srv := start(t, "")
	var wg sync.WaitGroup
	for range 4 {
		s := dial(t, srv.address, Options{})
		wg.Go(func() {
			for range 100 {
				_, err := s.Add(t.Context(), "a:443", -1, 500)
				assert.NoError(t, err)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 100.0, add(t, dial(t, srv.address, Options{}), "a:443", 0, 500))
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
	assert.NoError(t, client.Ping(t.Context()).Err(), "what isn't ours stays open")
}
