// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package attempt

import (
	"crypto/tls"
	"net"
	"net/url"
	"reflect"
	"sync"
)

// maxSends bounds how often the base may send a request within one attempt.
const maxSends = 10

// conns tells the connections of an attempt's request from others for which the base asks
// with the request's context: those of a side request, such as for a token, and of a dialer
// that itself speaks HTTP, such as for a look-up. As long as nothing shows which are the
// request's, all are sends: a base that isn't net/http's own may use a proxy.
type conns struct {
	mu       sync.Mutex
	asked    int32  // connections that were asked for, for the request or its proxy
	aside    int32  // others that were asked for since the last of them, and not got yet
	first    string // where the first of those asked for should lead
	sends    int32  // connections got, each for one send
	doubtful bool   // the one for the last of those asked for may be one of the others
	bounded  boundedSends
}

// ask records that a connection to hostPort was asked for, and reports whether that is for the
// request, to u. owns is [OwnConns].
func (c *conns) ask(hostPort string, u *url.URL, owns bool) (own bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case isOf(hostPort, u), owns && (c.asked == 0 || hostPort == c.first):
	case owns && c.sends == c.asked && !isOf(c.first, u): // another proxy
	default:
		c.aside++
		return false
	}
	if c.asked == 0 {
		// What came before was for something else.
		c.first, c.sends = hostPort, 0
	}
	c.asked++
	c.aside, c.doubtful = 0, false
	return true
}

// got records a connection, and reports whether it is one for the request. It then returns how
// many sends count towards maxSends.
func (c *conns) got(conn net.Conn, reused, expectHTTP2 bool) (n int, own bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.sends < c.asked:
		c.doubtful = c.aside > 0
	case c.aside > 0:
		if c.aside--; c.asked == 0 {
			c.sends++
		}
		return 0, false
	default:
		// Over HTTP/2, net/http doesn't always say that it asks.
		c.asked++
		c.doubtful = false
	}
	c.sends++
	return c.bounded.count(conn, reused, expectHTTP2), true
}

// state returns how many connections have been asked for and got.
func (c *conns) state() (asked, sends int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return int(c.asked), int(c.sends)
}

// boundedSends counts the sends of an attempt towards maxSends.
//
// Over HTTP/1, net/http resends a request only when a connection from its pool
// turns out to be dead, and the size of the pool bounds that. So a send over a
// pooled connection doesn't count, unless the connection speaks HTTP/2 or the
// attempt has already taken it from the pool once.
type boundedSends struct {
	began   bool
	second  bool // there was a second send
	reused  bool // the connection of the first send came from the pool
	counted int32
	first   net.Conn     // the connection of the first send
	pooled  []pooledConn // pooled connections, from the second send on
}

// pooledConn is a connection that net/http took from its pool.
type pooledConn struct {
	conn    net.Conn
	counted bool // its first send counts
}

// count records a send over conn and returns how many sends count so far.
func (b *boundedSends) count(conn net.Conn, reused, expectHTTP2 bool) int {
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
	return int(b.counted)
}

// firstConn returns the connection of the first send, and whether there was
// one.
func (c *conns) firstConn() (net.Conn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bounded.first, c.bounded.began
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
