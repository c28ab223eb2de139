// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// Any trouble of a server yields an error before the context ends. Operations
// succeed again when the server has recovered.
//
//retrip:promise P22
func TestStore_Troubles(t *testing.T) {
	srv := start(t, "", "--enable-debug-command", "yes")
	s := dial(t, srv.address, Options{})
	ctx, c := t.Context(), s.client
	const host = "a:443"
	failsWithin := func(limit time.Duration, want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		began := time.Now()
		_, err := s.Add(ctx, host, -1, 500)
		assert.ErrorContains(t, err, want)
		assert.Less(t, time.Since(began), limit+20*time.Second, "on a busy machine")
	}
	fails := func(want string) { t.Helper(); failsWithin(10*time.Second, want) }
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
	// The value of another program stays as it is. As what an account lacks, the
	// last three would forbid all retries for as long as anyone asks.
	for _, other := range []string{"nonsense", "", "nan", "-1", "inf", "1e300", "1763822603"} {
		require.NoError(t, c.Set(ctx, s.prefix+host, other, 0).Err())
		fails("WRONGTYPE")
		assert.Equal(t, other, c.Get(ctx, s.prefix+host).Val())
	}
	require.NoError(t, c.Del(ctx, s.prefix+host).Err())
	works()
	assert.Equal(t, 0.0, add(t, s, host, -1e6, 1e6), "the largest account is valid when it is empty")
	assert.Equal(t, 20.0, add(t, s, host, 20, 1e6))

	require.NoError(t, c.ScriptFlush(ctx).Err())
	works() // the client loads the script again

	stop(t, srv)
	failsWithin(300*time.Millisecond, "timeout")
	cont(t, srv)
	works()

	srv.kill()
	failsWithin(300*time.Millisecond, "")
	start(t, srv.address)
	works()
}

// Processes with different sizes share an account, for example during the
// roll-out of a new FleetBudget.
//
//retrip:promise P22
func TestStore_Sizes(t *testing.T) {
	s := dial(t, start(t, "").address, Options{})
	const host = "a:443"
	for _, step := range []struct{ tokens, size, want float64 }{
		{0, 100, 100}, {-300, 500, 200}, {0, 100, 0}, {0, 500, 200}, {-50, 100, 0}, {0, 500, 200},
		{250, 100, 50}, {0, 500, 450}, {1000, 500, 500}, {0, 100, 100},
	} {
		assert.Equal(t, step.want, add(t, s, host, step.tokens, step.size), "%+v", step)
	}
}

// Reading an account keeps it from expiring: in a long outage it forbids all
// retries, so no process charges it.
//
//retrip:promise P22
func TestStore_ReadingKeepsAnAccount(t *testing.T) {
	s := dial(t, start(t, "").address, Options{})
	const host = "a:443"
	add(t, s, host, -500, 500)
	require.True(t, s.client.PExpire(t.Context(), s.prefix+host, 5*time.Second).Val())
	assert.Zero(t, add(t, s, host, 0, 500))
	assert.Greater(t, s.client.PTTL(t.Context(), s.prefix+host).Val(), 30*time.Second)
}

// Whatever a server answers, the Fleet uses a valid level or none.
//
//retrip:promise P22
func TestStore_HostileAnswers(t *testing.T) {
	for name, reply := range map[string]string{
		"nan": "$3\r\nnan\r\n", "infinite": "$3\r\ninf\r\n", "too large": "$6\r\n1e9999\r\n", "negative": "$2\r\n-5\r\n", "nothing": "$-1\r\n",
		"empty": "$0\r\n\r\n", "a list": "*2\r\n$1\r\n0\r\n$1\r\n0\r\n", "nested": strings.Repeat("*1\r\n", 10_000), "a table": "%1\r\n+a\r\n+b\r\n", "an error": "-" + strings.Repeat("x", 100_000) + "\r\n",
		"not RESP": "HTTP/1.1 400 Bad Request\r\n\r\n", "words": "$4\r\nfull\r\n", "the end": "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := dial(t, answering(t, reply), Options{})
			fleet := retrip.NewFleet(store.Add)
			defer fleet.Close()
			reasons := map[retrip.Reason]int{}
			tr := &retrip.Transport{
				Fleet: fleet, Policy: retrip.Policy{MaxAttempts: 2, Backoff: retrip.Backoff{Base: time.Millisecond}},
				Base:  down,
				Trace: &retrip.Trace{Done: func(e retrip.Event) { reasons[e.Reason]++ }},
			}
			for i := range 20 {
				testenv.Drop(t, tr, play.MustRequest(t, http.MethodGet, fmt.Sprintf("http://%d.example/", i), nil))
			}
			assert.Equal(t, map[retrip.Reason]int{retrip.ReasonMaxAttempts: 20}, reasons, "the budgets alone")
		})
	}
}

// answering is a server that gives the same answer to each EVALSHA, and OK to
// everything before.
func answering(t *testing.T, reply string) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go testenv.Accept(l, func(conn net.Conn) {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			switch strings.ToLower(lines.Text()) {
			case "hello":
				fmt.Fprint(conn, "%1\r\n+proto\r\n:3\r\n")
			case "client":
				fmt.Fprint(conn, "+OK\r\n")
			case "evalsha", "eval":
				fmt.Fprint(conn, reply)
				if reply == "" {
					return
				}
			}
		}
	})
	return l.Addr().String()
}
