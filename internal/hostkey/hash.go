// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package hostkey

import (
	"math/bits"
	"math/rand/v2"
	"net/url"
	"strings"
)

// Hash returns a hash of k that differs from process to process. It is the same
// for keys that differ only in the case of ASCII letters.
func (k Key) Hash() uint64 {
	port, ok := portNumber(k.Port)
	if !ok {
		port, _ = hashName(k.Port, 0)
	}
	hash, _ := hashName(k.Host, port)
	return hash
}

// Hash returns Of(u).Hash(). It makes no key if u spells its host as most
// URLs do: in ASCII, without brackets and without a trailing dot.
func Hash(u *url.URL) uint64 {
	if u != nil {
		if hash, ok := quickHash(u); ok {
			return hash
		}
	}
	return Of(u).Hash()
}

func quickHash(u *url.URL) (hash uint64, ok bool) {
	host, port := u.Host, ""
	if i := strings.IndexByte(host, ':'); i >= 0 {
		host, port = host[:i], host[i+1:]
	}
	if n := len(host); n == 0 || n > mostName || host[0] == '[' || host[n-1] == '.' {
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
