// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"math/bits"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync/atomic"
)

// hostMarks has a mark for each host of a stripe (a Bloom filter). The marks of
// other hosts may cover that of a host, so a mark doesn't prove that a host is
// there, but the lack of a mark proves that it is not. Any goroutine may look
// for a mark. To change marks, it must hold the stripe's lock.
type hostMarks [32]atomic.Uint64

// mark returns the mark of a host with the given hash: three bits of one word
// of hostMarks. In a full table, others cover one mark in 580.
func mark(hash uint64) (word int, bits uint64) {
	hash /= hostStripes // the rest chose the stripe
	return int(hash >> 18 % uint64(len(hostMarks{}))), 1<<(hash%64) | 1<<(hash>>6%64) | 1<<(hash>>12%64)
}

func (m *hostMarks) has(hash uint64) bool {
	word, bits := mark(hash)
	return m[word].Load()&bits == bits
}

func (m *hostMarks) add(hash uint64) {
	word, bits := mark(hash)
	m[word].Or(bits)
}

// remove drops the mark of a host, except the bits of hosts that stay.
func (m *hostMarks) remove(hash uint64, stay map[hostKey]*hostEntry) {
	word, _ := mark(hash)
	var bits uint64
	for _, e := range stay {
		if w, mark := mark(e.hash); w == word {
			bits |= mark
		}
	}
	m[word].Store(bits)
}

// hostLookup looks a host up in a table, as often as needed, and hashes it at
// most once.
type hostLookup struct {
	url  *url.URL
	hash uint64 // 0 until it is needed
}

// hash returns a hash of k that differs from process to process. It is the same
// for keys that differ only in the case of ASCII letters.
func (k hostKey) hash() uint64 {
	port, ok := portNumber(k.port)
	if !ok {
		port, _ = hashName(k.port, 0)
	}
	hash, _ := hashName(k.host, port)
	return hash
}

// hashOf returns keyOf(u).hash(). It makes no key if u spells its host as most
// URLs do: in ASCII, without brackets and without a trailing dot.
func hashOf(u *url.URL) uint64 {
	if u != nil {
		if hash, ok := quickHash(u); ok {
			return hash
		}
	}
	return keyOf(u).hash()
}

func quickHash(u *url.URL) (hash uint64, ok bool) {
	host, port := u.Host, ""
	if i := strings.IndexByte(host, ':'); i >= 0 {
		host, port = host[:i], host[i+1:]
	}
	if n := len(host); n == 0 || host[0] == '[' || host[n-1] == '.' {
		return 0, false
	}
	var number uint64
	switch {
	case port != "":
		if number, ok = portNumber(port); !ok {
			return 0, false
		}
	case u.Scheme == "https":
		number = 443
	case u.Scheme == "http":
		number = 80
	}
	return hashName(host, number)
}

// portNumber returns the number of a port, which is 0 if there is none.
func portNumber(port string) (n uint64, ok bool) {
	if len(port) > 5 {
		return 0, false
	}
	for i := range len(port) {
		digit := port[i] - '0'
		if digit > 9 {
			return 0, false
		}
		n = 10*n + uint64(digit)
	}
	return n, true
}

// hashName hashes name together with port, without regard to the case of
// letters. It reports whether name is ASCII.
//
// The secrets keep those who choose names and ports from choosing some that
// collide.
func hashName(name string, port uint64) (hash uint64, ascii bool) {
	n := len(name)
	hash = hashSecrets[0] + (port<<32|uint64(n))*hashSecrets[1]
	var all, last uint64
	if n >= 8 {
		for i := 0; i < n-8; i += 8 {
			w := word(name[i:])
			all |= w
			hash = mix(hash, w)
		}
		last = word(name[n-8:])
	} else {
		for i := range n {
			last = last<<8 | uint64(name[i])
		}
	}
	return mix(mix(hash, last), 0), (all|last)&0x8080808080808080 == 0
}

func mix(hash, word uint64) uint64 {
	const lower = 0x2020202020202020
	high, low := bits.Mul64(hash^(word|lower), hashSecrets[2])
	return high ^ low
}

// word returns the first 8 bytes of s. The compiler makes it a single load.
func word(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

var hashSecrets = [3]uint64{rand.Uint64(), rand.Uint64() | 1, rand.Uint64() | 1}
