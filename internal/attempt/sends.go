// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"crypto/tls"
	"net"
	"reflect"
	"sync"
)

// maxSends bounds how often the base may send a request within one attempt.
const maxSends = 10

// boundedSends counts the sends of an attempt towards maxSends.
//
// Over HTTP/1, net/http resends a request only when a connection from its pool
// turns out to be dead, and the size of the pool bounds that. So a send over a
// pooled connection doesn't count, unless the connection speaks HTTP/2 or the
// attempt has already taken it from the pool once.
type boundedSends struct {
	mu      sync.Mutex
	began   bool
	second  bool         // there was a second send
	first   net.Conn     // the connection of the first send
	reused  bool         // the connection of the first send came from the pool
	pooled  []pooledConn // pooled connections, from the second send on
	counted int
}

// pooledConn is a connection that net/http took from its pool.
type pooledConn struct {
	conn    net.Conn
	counted bool // its first send counts
}

// count records a send over conn and returns how many sends count so far. It is
// safe for concurrent use.
func (b *boundedSends) count(conn net.Conn, reused, expectHTTP2 bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.began {
		// Most attempts send once. The connection of the first send matters
		// only if there is a second send.
		b.began, b.reused, b.first = true, reused, conn
		return 1
	}
	if !b.second {
		b.second = true
		b.add(b.first, b.reused, expectHTTP2)
	}
	b.add(conn, reused, expectHTTP2)
	return b.counted
}

// firstConn returns the connection of the first send, and whether there was
// one.
func (b *boundedSends) firstConn() (net.Conn, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.first, b.began
}

func (b *boundedSends) add(conn net.Conn, reused, expectHTTP2 bool) {
	if !reused || !isComparable(conn) || speaksHTTP2(conn, expectHTTP2) {
		b.counted++
		return
	}
	for i := range b.pooled {
		p := &b.pooled[i]
		if p.conn != conn {
			continue
		}
		b.counted++
		if !p.counted {
			p.counted = true
			b.counted++
		}
		return
	}
	b.pooled = append(b.pooled, pooledConn{conn: conn})
}

// isComparable reports whether conn can be compared with other connections.
func isComparable(conn net.Conn) bool {
	v := reflect.ValueOf(conn)
	return v.IsValid() && v.Comparable()
}

// speaksHTTP2 reports whether conn speaks HTTP/2. For a connection without TLS,
// which doesn't reveal its protocol, it returns expected.
func speaksHTTP2(conn net.Conn, expected bool) bool {
	if c, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		return c.ConnectionState().NegotiatedProtocol == "h2"
	}
	return expected
}
