// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
)

// Two URLs of the same host have the same hash, however they spell it.
// Otherwise trouble that came under one spelling would not be seen under
// another.
func TestHash_IsThatOfTheKey(t *testing.T) {
	assert.Equal(t, hostkey.Key{}.Hash(), hostkey.Hash(nil))
	byKey := map[hostkey.Key]uint64{}
	check := func(scheme, host string) {
		u := &url.URL{Scheme: scheme, Host: host}
		key := hostkey.Of(u)
		hash := hostkey.Hash(u)
		require.Equal(t, key.Hash(), hash, "%+q", host)
		if before, known := byKey[key]; known {
			require.Equal(t, before, hash, "%+q", host)
		}
		byKey[key] = hash
	}
	schemes := []string{"http", "https", "", "ftp"}
	for _, host := range []string{
		"", ".", "..", ":", ":80", "[", "]", "[]", "[]:80", "[]:", "a", "a:", "a.", "a..", "a.:", "a.:443", "a:443", "A:443", "a:0", "a:00443", "a:000443",
		"a:b", "a:b:80", "[a:b]:80", "[a:b]", "a:b]", "a:80]", "[a]", "[a", "a]", "[a].", "[a.]", "[a.]:80", "[A]:80", "::1", "[::1]", "[::1]:443", "[::1%25eth0]:80",
		"example.com", "EXAMPLE.com.", "example.com:8080", "example.com:99999", "example.com:999990", "12345678", "123456789", "a_b", "a\x7fb", "\u212aelvin", "kelvin", "KELVIN",
		"\u0130stanbul.example", "i\u0307stanbul.example", "b\u00fccher.example:80", "\xff\xfe", "a\xff:80",
	} {
		for _, scheme := range schemes {
			check(scheme, host)
		}
	}
	pieces := []string{"a", "B", "z", ".", ":", "[", "]", "80", "443", "0", "-", "_", "\u212a", "k", "\x80", "example", "COM"}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var host strings.Builder
		for range random.IntN(7) {
			host.WriteString(pieces[random.IntN(len(pieces))])
		}
		check(schemes[random.IntN(len(schemes))], host.String())
	}
}

// FuzzHash looks for spellings of one host with two hashes.
func FuzzHash(f *testing.F) {
	f.Add("https", "example.com:443")
	f.Add("http", "[::1]:80")
	f.Add("", "A.:")
	f.Fuzz(func(t *testing.T, scheme, host string) {
		u := &url.URL{Scheme: scheme, Host: host}
		require.Equal(t, hostkey.Of(u).Hash(), hostkey.Hash(u))
	})
}

// Hosts that differ only a little spread over all stripes and marks.
func TestHash_Spreads(t *testing.T) {
	for name, host := range map[string]func(i int) string{
		"names": func(i int) string { return fmt.Sprintf("tenant-%d.example.com", i) },
		"short": func(i int) string { return strconv.Itoa(i) },
		"ports": func(i int) string { return fmt.Sprintf("127.0.0.%d:%d", i>>15, 1+i&0x7fff) },
	} {
		t.Run(name, func(t *testing.T) {
			const hosts = 1 << 17
			var inStripe [stripes]int
			var marks [64 * len(marks{})]int
			for i := range hosts {
				hash := hostkey.Hash(&url.URL{Scheme: "https", Host: host(i)})
				inStripe[hash%stripes]++
				word, bits := mark(hash)
				for n := range 64 {
					marks[64*word+n] += int(bits >> n & 1)
				}
			}
			for _, n := range inStripe {
				assert.InDelta(t, hosts/len(inStripe), n, hosts/float64(len(inStripe))/4)
			}
			for _, n := range marks {
				assert.InDelta(t, 3*hosts/len(marks), n, 1.5*hosts/float64(len(marks)))
			}
		})
	}
}
