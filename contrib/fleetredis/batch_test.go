// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// An operation whose caller has gone isn't sent.
func TestStore_GoneCallers(t *testing.T) {
	srv := start(t, "")
	s := dial(t, srv.address, Options{})
	server := &queue{lines: lines} // all round trips are under way
	s.queues.all = map[redis.UniversalClient]*queue{s.client: server}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := s.Add(ctx, "gone.example:80", -1, 10)
		failed <- err
	}()
	go func() {
		_, err := s.Add(t.Context(), "here.example:80", -1, 10)
		failed <- err
	}()
	due := func() bool {
		s.queues.mu.Lock()
		defer s.queues.mu.Unlock()
		return len(server.due) == 2
	}
	require.Eventually(t, due, 10*time.Second, time.Millisecond)
	cancel()
	require.ErrorIs(t, <-failed, context.Canceled)
	s.queues.send(s.client, server)
	require.NoError(t, <-failed)
	keys, err := s.client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Equal(t, []string{s.prefix + "here.example:80"}, keys)
}

// Each operation of a round trip has a result of its own, and few connections carry
// them all. There are as many keys as hosts in trouble, and each expires.
//
//retrip:promise P22
func TestStore_BatchWithErrors(t *testing.T) {
	srv := start(t, "")
	s := dial(t, srv.address, Options{})
	require.NoError(t, s.client.LPush(t.Context(), s.prefix+"1.example:80", "x").Err())
	require.NoError(t, s.client.ScriptFlush(t.Context()).Err())
	var wg sync.WaitGroup
	for i := range 1000 {
		wg.Go(func() {
			level, err := s.Add(t.Context(), fmt.Sprintf("%d.example:80", i), -float64(i), 1000)
			if i == 1 {
				assert.True(t, redis.HasErrorPrefix(err, "WRONGTYPE"), "%v", err)
			} else if assert.NoError(t, err) {
				assert.Equal(t, 1000-float64(i), level)
			}
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, s.client.PoolStats().TotalConns, uint32(lines))
	assert.Contains(t, s.client.Info(t.Context(), "keyspace").Val(), "keys=999,expires=998", "one is full, and one is of another program")
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	assert.Empty(t, s.queues.all)
}
