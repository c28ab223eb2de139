// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetredis keeps the accounts of a [retrip.Fleet] in Redis or Valkey:
//
//	store, err := fleetredis.Dial(&redis.UniversalOptions{Addrs: []string{"redis:6379"}}, fleetredis.Options{Fleet: "shop"})
//	if err != nil { ... }
//	defer store.Close()
//	fleet := retrip.NewFleet(store.Add)
//	defer fleet.Close()
//
// An operation is one round trip: an EVALSHA of a short script on one key. A
// key exists only while its account isn't full, and expires after a minute
// without use. The script compares no clocks, so the time of day at the
// server and at the clients doesn't matter.
//
// # In production
//
// The options of go-redis set users and TLS. For a cluster, also one behind a
// single configuration endpoint such as that of ElastiCache, set IsClusterMode.
// For Sentinels, give their addresses and MasterName. The errors MOVED and
// READONLY name these settings. If cluster-require-full-coverage is no, a
// missing node costs only the accounts that it holds.
//
// The server's user needs the commands EVALSHA, EVAL, GET, SET and DEL for the
// keys "retrip:*", or those with Options.Prefix.
//
// Each process keeps one to four connections for each node. It opens the first
// one when it starts, because thousands of new connections in an outage would
// slow the store down. So Redis's maxclients, 10 000 by default, must exceed
// the number of processes. Operations that find all connections busy share the
// next round trip.
//
// The budgets decide alone while Redis is down, hangs, is out of memory, is
// read-only or is still loading, or if another program has written something
// else under a key. A store that is far away, and one whose clients lack the
// processor time to read an answer within 50 ms, count as down. Meanwhile
// retrip logs at most one line per minute. go-redis logs each connection that
// it can't make, one every 5 to 15 s; redis.SetLogger turns that off.
package fleetredis

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options say where the accounts are kept. The zero Options are valid.
type Options struct {
	// Prefix begins every key. If empty, it is "retrip".
	Prefix string

	// Fleet names the processes that share accounts: up to 64 letters, digits,
	// dots, hyphens and underscores. If empty, it is "default".
	Fleet string

	// Shards is the number of shards into which each account is split, 1 to
	// 1000. A process uses one of them, which New draws at random.
	// Policy.FleetBudget is then the size of a shard: about the requests of
	// the processes that share it in a quarter of a second. If 0, there is one shard.
	Shards int
}

// Store keeps the accounts of a [retrip.Fleet] in Redis or Valkey. It is safe for
// concurrent use.
type Store struct {
	client redis.UniversalClient
	own    bool
	prefix string
	queues queues
}

var nameOK = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// New returns a Store that uses client and never closes it. The client should
// have ContextTimeoutEnabled set and MaxRetries at -1, so that it stops work
// that nobody waits for; [Dial] sets both. The error names an invalid option.
func New(client redis.UniversalClient, o Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("fleetredis: client is nil")
	}
	prefix, err := o.prefix()
	if err != nil {
		return nil, err
	}
	return &Store{client: client, prefix: prefix}, nil
}

// prefix returns the start of the keys, or an error that names an invalid
// option.
func (o Options) prefix() (string, error) {
	fleet, shards := cmp.Or(o.Fleet, "default"), cmp.Or(o.Shards, 1)
	if !nameOK.MatchString(fleet) {
		return "", fmt.Errorf("fleetredis: Options.Fleet is %q: it must be up to 64 letters, digits, dots, hyphens and underscores", o.Fleet)
	}
	if shards < 1 || shards > 1000 {
		return "", fmt.Errorf("fleetredis: Options.Shards is %d: it must be 1 to 1000", o.Shards)
	}
	// The name contains no colon and the host comes last, so two accounts never
	// have the same key, whatever the host.
	return cmp.Or(o.Prefix, "retrip") + ":" + fleet + ":" + strconv.Itoa(rand.IntN(shards)) + ":", nil
}

// Dial returns a Store with a client of its own, which Close closes. It uses
// addresses, users, TLS and everything else from options, except what would
// make a client continue for long. It always sets ContextTimeoutEnabled. Unless
// options set them, it dials within a second, doesn't repeat commands, and
// keeps one to four connections. It opens the first one in the background, so
// that the processes of a fleet don't all connect at the moment of an outage.
// The error names an invalid option.
func Dial(options *redis.UniversalOptions, o Options) (*Store, error) {
	if options == nil {
		return nil, fmt.Errorf("fleetredis: options are nil")
	}
	prefix, err := o.prefix()
	if err != nil {
		return nil, err
	}
	own := *options
	own.ContextTimeoutEnabled = true
	own.MaxRetries = cmp.Or(own.MaxRetries, -1)
	own.DialTimeout = cmp.Or(own.DialTimeout, time.Second)
	own.DialerRetries = cmp.Or(own.DialerRetries, 1)
	own.PoolSize = cmp.Or(own.PoolSize, 4)
	own.MinIdleConns = cmp.Or(own.MinIdleConns, 1)
	return &Store{client: redis.NewUniversalClient(&own), own: true, prefix: prefix}, nil
}

// Close closes the client that Dial has made. Operations that are in progress
// fail.
func (s *Store) Close() error {
	if !s.own {
		return nil
	}
	return s.client.Close()
}

// The key holds what the account lacks, not its level: processes with another
// size may share it while a new size is rolled out, and an account that is full
// for one of them must not become full for the others. A full account has no
// key, so reading it or paying into it writes nothing. Reading any other
// account keeps it: in a long outage nobody may retry, so nobody charges it,
// and an expired account would be full. If the key holds anything but a number
// up to the largest Policy.FleetBudget, it belongs to another program, and the
// script returns an error: no payments would ever refill an account that lacks
// an infinite number of tokens.
var script = redis.NewScript(`
local tokens, size = tonumber(ARGV[1]), tonumber(ARGV[2])
local found = redis.call('GET', KEYS[1])
local had = 0
if found then
  had = tonumber(found)
  if not had or not (had >= 0 and had <= 1000000) then return redis.error_reply('WRONGTYPE the account is not a number') end
end
local lacks = math.max(0, had - tokens)
if tokens < 0 then lacks = math.max(had, math.min(size, lacks)) end
if lacks == 0 then
  if found then redis.call('DEL', KEYS[1]) end
else
  redis.call('SET', KEYS[1], string.format('%.6f', lacks), 'PX', ARGV[3])
end
return string.format('%.6f', math.max(0, size - lacks))
`)

const life = time.Minute

// Add is the function for [retrip.NewFleet].
func (s *Store) Add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	text, err := s.run(ctx, s.prefix+host, number(tokens), number(size), life.Milliseconds())
	if err != nil {
		return 0, fmt.Errorf("fleetredis: %w%s", err, hint(err))
	}
	level, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("fleetredis: the script returned %q, which is not a number", text)
	}
	return level, nil
}

// run runs the script on a key and returns what the script does.
func (s *Store) run(ctx context.Context, key string, args ...any) (string, error) {
	client := s.client
	cluster, clustered := client.(*redis.ClusterClient)
	if clustered {
		node, err := cluster.MasterForKey(ctx, key)
		if err != nil {
			return "", err
		}
		client = node
	}
	text, err := s.queues.do(client, &operation{ctx: ctx, key: key, args: args, done: make(chan struct{})})
	if clustered && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
		// The key is at another node now. The client follows, and learns it.
		return script.Run(ctx, cluster, []string{key}, args...).Text()
	}
	return text, err
}

// hint returns which setting helps against an error, if one does.
func hint(err error) string {
	switch {
	case redis.HasErrorPrefix(err, "MOVED"), redis.HasErrorPrefix(err, "ASK"):
		return " (the server is part of a cluster: set UniversalOptions.IsClusterMode)"
	case redis.HasErrorPrefix(err, "CLUSTERDOWN"):
		return " (the cluster lacks nodes: with cluster-require-full-coverage no, the others serve their keys)"
	case strings.Contains(err.Error(), "cluster support disabled"):
		return " (the server is no cluster: leave UniversalOptions.IsClusterMode unset, and set MasterName for several Sentinels)"
	case redis.HasErrorPrefix(err, "READONLY"):
		return " (the server is a replica: give the address of the primary, or of the Sentinels with UniversalOptions.MasterName)"
	}
	return ""
}
