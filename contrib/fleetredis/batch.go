// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package fleetredis

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// An operation that finds all connections busy waits for the next round trip,
// together with all others that are due. So many hosts can begin to fail at
// once, with few connections and a server that is far away.
const (
	lines     = 4   // round trips under way at a time, to each server
	batchMost = 200 // operations of a round trip
)

// operation is an operation on one key.
type operation struct {
	ctx  context.Context
	key  string
	args []any
	cmd  *redis.Cmd
	err  error
	done chan struct{} // closed when cmd and err have their results
}

// queues are the operations that are due, for each server.
type queues struct {
	mu  sync.Mutex
	all map[redis.UniversalClient]*queue
}

type queue struct {
	due   []*operation
	lines int
}

// do makes o in the next round trip to the server of client.
func (q *queues) do(client redis.UniversalClient, o *operation) (string, error) {
	q.mu.Lock()
	if q.all == nil {
		q.all = map[redis.UniversalClient]*queue{}
	}
	server := q.all[client]
	if server == nil {
		server = &queue{}
		q.all[client] = server
	}
	server.due = append(server.due, o)
	if server.lines < lines {
		server.lines++
		go q.send(client, server)
	}
	q.mu.Unlock()
	select {
	case <-o.done:
		if o.err != nil {
			return "", o.err
		}
		return o.cmd.Text()
	case <-o.ctx.Done():
		return "", fmt.Errorf("no answer before the timeout: %w", o.ctx.Err())
	}
}

// send makes round trips until no operation is due.
func (q *queues) send(client redis.UniversalClient, server *queue) {
	for {
		q.mu.Lock()
		n := min(len(server.due), batchMost)
		batch := server.due[:n:n]
		if server.due = server.due[n:]; n == 0 {
			if server.lines--; server.lines == 0 {
				// A server may have left its cluster.
				delete(q.all, client)
			}
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		// A caller that has gone must not have its key changed later.
		batch = slices.DeleteFunc(batch, func(o *operation) bool { return o.ctx.Err() != nil })
		if len(batch) > 0 {
			trip(client, batch)
		}
	}
}

// trip makes a batch of operations in one round trip, or in two if the server
// doesn't know the script yet.
func trip(client redis.UniversalClient, batch []*operation) {
	ctx, cancel := within(batch)
	defer cancel()
	pipeline(ctx, client, batch, (*redis.Script).EvalSha)
	var again []*operation
	for _, o := range batch {
		if redis.HasErrorPrefix(o.err, "NOSCRIPT") {
			again = append(again, o)
		}
	}
	if len(again) > 0 {
		pipeline(ctx, client, again, (*redis.Script).Eval)
	}
	for _, o := range batch {
		close(o.done)
	}
}

func pipeline(ctx context.Context, client redis.UniversalClient, batch []*operation, run func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd) {
	pipe := client.Pipeline()
	for _, o := range batch {
		o.cmd = run(script, ctx, pipe, []string{o.key}, o.args...)
	}
	_, err := pipe.Exec(ctx)
	for _, o := range batch {
		if o.err = o.cmd.Err(); o.err == nil && o.cmd.Val() == nil {
			// The connection was refused before the first command.
			o.err = err
		}
	}
}

// within returns a context that ends when nobody waits for batch any more.
func within(batch []*operation) (context.Context, context.CancelFunc) {
	var last time.Time
	for _, o := range batch {
		deadline, ok := o.ctx.Deadline()
		if !ok {
			return context.WithCancel(context.Background())
		}
		if deadline.After(last) {
			last = deadline
		}
	}
	return context.WithDeadline(context.Background(), last)
}
