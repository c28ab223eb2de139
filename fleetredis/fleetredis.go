// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleetredis keeps the accounts of a [retrip.Fleet] in Redis or Valkey:
//
//	store, err := fleetredis.Dial(&redis.UniversalOptions{Addrs: []string{"redis:6379"}}, fleetredis.Options{Fleet: "shop"})
//	if err != nil { ... }
//	defer store.Close()
//	fleet := retrip.NewFleet(store)
//	defer fleet.Close()
//
// An operation is one EVALSHA of a short script on one key, one round trip. A
// key exists only while its account isn't full, and expires after a minute
// without a change. The script compares no clocks: what the time of day is at
// the server or at a client makes no difference.
//
// The server's user needs the commands EVALSHA, EVAL, GET, SET and DEL for the
// keys "retrip:*", or what Options.Prefix says. go-redis itself logs connections
// that it can't make; redis.SetLogger changes that.
package fleetredis

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/retrip/retrip"
)

// Options say where accounts are kept. The zero Options are valid.
type Options struct {
	// Prefix begins every key. If empty, "retrip".
	Prefix string

	// Fleet names the processes that share accounts: up to 64 letters, digits,
	// dots, hyphens and underscores. If empty, "default".
	Fleet string

	// Shards is in how many accounts each one is split, 1 to 1000. A process
	// uses one of them, drawn when the Store is made. Policy.FleetBudget is
	// then the size of a shard: about the requests per second of its share of
	// the processes. If 0, there is one.
	Shards int
}

// Store is a [retrip.FleetStore] in Redis or Valkey. It is safe for concurrent
// use.
type Store struct {
	client redis.UniversalClient
	own    bool
	prefix string
}

var _ retrip.FleetStore = (*Store)(nil)

var nameOK = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// New returns a Store that uses client, and never closes it. The client should
// have ContextTimeoutEnabled set and MaxRetries at -1, so that it doesn't go on
// with what nobody waits for any more: [Dial] does that. The error names an
// option that is wrong.
func New(client redis.UniversalClient, o Options) (*Store, error) {
	if client == nil {
		return nil, fmt.Errorf("fleetredis: client is nil")
	}
	fleet, shards := cmp.Or(o.Fleet, "default"), cmp.Or(o.Shards, 1)
	if !nameOK.MatchString(fleet) {
		return nil, fmt.Errorf("fleetredis: Options.Fleet is %q: it must be up to 64 letters, digits, dots, hyphens and underscores", o.Fleet)
	}
	if shards < 1 || shards > 1000 {
		return nil, fmt.Errorf("fleetredis: Options.Shards is %d: it must be 1 to 1000", o.Shards)
	}
	// The name has no colon and the host comes last: two accounts never have one
	// key, whatever a host is called.
	prefix := cmp.Or(o.Prefix, "retrip") + ":" + fleet + ":" + strconv.Itoa(rand.IntN(shards)) + ":"
	return &Store{client: client, prefix: prefix}, nil
}

// Dial returns a Store with a client of its own, which Close closes. Addresses,
// users, TLS and everything else are as options say, but for those by which a
// client goes on for long: unless they are set, it dials within a second,
// doesn't repeat a command, and keeps up to four connections. It doesn't connect yet. The
// error names an option that is wrong.
func Dial(options *redis.UniversalOptions, o Options) (*Store, error) {
	if options == nil {
		return nil, fmt.Errorf("fleetredis: options are nil")
	}
	own := *options
	own.ContextTimeoutEnabled = true
	own.MaxRetries = cmp.Or(own.MaxRetries, -1)
	own.DialTimeout = cmp.Or(own.DialTimeout, time.Second)
	own.DialerRetries = cmp.Or(own.DialerRetries, 1)
	own.PoolSize = cmp.Or(own.PoolSize, 4)
	client := redis.NewUniversalClient(&own)
	s, err := New(client, o)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.own = true
	return s, nil
}

// Close closes the client that Dial has made. It may be called while operations
// are under way, which then fail.
func (s *Store) Close() error {
	if !s.own {
		return nil
	}
	return s.client.Close()
}

// An account that is full has no key, so reading one, or paying into one, writes
// nothing. What isn't a number under the key is somebody else's: an error.
var script = redis.NewScript(`
local size = tonumber(ARGV[2])
local found = redis.call('GET', KEYS[1])
local level = size
if found then
  level = tonumber(found)
  if not level or level ~= level then return redis.error_reply('WRONGTYPE the account is not a number') end
end
local sum = math.max(0, math.min(size, level + tonumber(ARGV[1])))
if sum >= size then
  if found then redis.call('DEL', KEYS[1]) end
elseif sum ~= level or not found then
  redis.call('SET', KEYS[1], string.format('%.6f', sum), 'PX', ARGV[3])
end
return string.format('%.6f', sum)
`)

const life = time.Minute

// Add adds tokens to the account of a host, as [retrip.FleetStore] has it.
func (s *Store) Add(ctx context.Context, host string, tokens, size float64) (float64, error) {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	text, err := script.Run(ctx, s.client, []string{s.prefix + host}, number(tokens), number(size), life.Milliseconds()).Text()
	if err != nil {
		return 0, fmt.Errorf("fleetredis: %w", err)
	}
	level, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("fleetredis: the script answers %q", text)
	}
	return level, nil
}
