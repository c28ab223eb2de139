// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Two URLs of the same host have the same hash, however they spell it.
// Otherwise trouble that came under one spelling would not be seen under
// another.
func TestHash_IsThatOfTheKey(t *testing.T) {
	assert.Equal(t, hostKey{}.hash(), hashOf(nil))
	byKey := map[hostKey]uint64{}
	check := func(scheme, host string) {
		u := &url.URL{Scheme: scheme, Host: host}
		key := keyOf(u)
		hash := hashOf(u)
		require.Equal(t, key.hash(), hash, "%+q", host)
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
		require.Equal(t, keyOf(u).hash(), hashOf(u))
	})
}

// Hosts that differ only a little spread over all stripes and marks.
func TestHash_Spreads(t *testing.T) {
	for name, host := range map[string]func(i int) string{
		"names": func(i int) string { return fmt.Sprintf("tenant-%d.example.com", i) },
		"short": func(i int) string { return strconv.Itoa(i) },
		"ports": func(i int) string { return fmt.Sprintf("127.0.0.1:%d", 1+i) },
	} {
		t.Run(name, func(t *testing.T) {
			const hosts = 1 << 16
			var stripes [hostStripes]int
			var bits [64 * len(hostMarks{})]int
			for i := range hosts {
				hash := hashOf(&url.URL{Scheme: "https", Host: host(i)})
				stripes[hash%hostStripes]++
				word, mark := mark(hash)
				for n := range 64 {
					bits[64*word+n] += int(mark >> n & 1)
				}
			}
			for _, n := range stripes {
				assert.InDelta(t, hosts/len(stripes), n, hosts/float64(len(stripes))/4)
			}
			for _, n := range bits {
				assert.InDelta(t, 2*hosts/len(bits), n, hosts/float64(len(bits)))
			}
		})
	}
}

// sameMark returns n hosts that share one mark of one stripe.
func sameMark(n int) []string {
	return likeFirst(n, func(mark, first uint64) bool { return mark == first })
}

// halfMark returns n hosts of one stripe whose marks share a bit with one mark.
func halfMark(n int) []string {
	return likeFirst(n, func(mark, first uint64) bool { return mark != first && mark&first != 0 })
}

func likeFirst(n int, like func(mark, first uint64) bool) []string {
	var hosts []string
	first := hashOf(&url.URL{Scheme: "https", Host: "host.example"})
	word, bits := mark(first)
	for i := 0; len(hosts) < n; i++ {
		host := "host" + strconv.Itoa(i) + ".example"
		hash := hashOf(&url.URL{Scheme: "https", Host: host})
		if w, b := mark(hash); w == word && like(b, bits) && hash%hostStripes == first%hostStripes {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// A mark stays as long as one of the hosts that share it is in trouble, and
// proves nothing about the others.
func TestHostMarks_Shared(t *testing.T) {
	var table hostTable
	r := defaultRules(t, Policy{})
	hosts := sameMark(3)
	calm := func(host string) bool {
		return table.calm(&hostLookup{url: &url.URL{Scheme: "https", Host: host}})
	}
	for _, host := range hosts[:2] {
		failAt(&table, hostKey{host, "443"}, r, refusal, 0)
	}
	assert.True(t, calm(hosts[2]))
	for range 3 {
		succeedAt(&table, hostKey{hosts[0], "443"}, r, 0)
	}
	assert.True(t, calm(hosts[0]))
	assert.False(t, calm(hosts[1]))
	for range 3 {
		succeedAt(&table, hostKey{hosts[1], "443"}, r, 0)
	}
	for i := range table.stripes {
		for n := range table.stripes[i].marks {
			assert.Zero(t, table.stripes[i].marks[n].Load())
		}
	}
}

// A host in trouble is never taken for a healthy one: not while others that
// share its stripe or its mark come and go, and not while someone looks at the
// table or replaces the policies.
func TestHostMarks_NeverForget(t *testing.T) {
	var table hostTable
	r := defaultRules(t, Policy{})
	hosts := append(append(sameMark(4), halfMark(4)...), "a.example", "b.example")
	for _, key := range sameStripe(&table, 6) {
		hosts = append(hosts, key.host)
	}
	done := make(chan struct{})
	var watching, working sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			table.all(0)
			table.refit(func(*hostEntry) int64 { return r.size })
		}
	})
	rounds := 5000
	if raceEnabled {
		rounds = 1000
	}
	for _, host := range hosts {
		working.Go(func() {
			// This goroutine alone decides about its host.
			key, u := hostKey{host, "443"}, &url.URL{Scheme: "https", Host: host}
			look := func(want bool, when string) bool {
				return assert.Equal(t, want, table.calm(&hostLookup{url: u}), "%s %s", host, when)
			}
			for range rounds {
				failAt(&table, key, r, refusal, 0)
				if !look(false, "has failed") {
					return
				}
				succeedAt(&table, key, r, 0)
				if !look(false, "has not healed") {
					return
				}
				succeedAt(&table, key, r, 0)
				succeedAt(&table, key, r, 0)
				if !look(true, "has healed") {
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	watching.Wait()
	assert.Empty(t, inTrouble(&table, 0))
}

// A success pays into the budget of a host that came into trouble while the
// request was under way, whatever happens to other hosts and to the policies
// meanwhile.
func TestHostMarks_TroubleMeanwhile(t *testing.T) {
	var down atomic.Int32
	tr := &Transport{Policy: Policy{MaxAttempts: 2, Backoff: Backoff{Base: Off}}}
	get := func(host string, header http.Header) {
		req, err := http.NewRequest(http.MethodGet, "https://"+host, nil)
		if assert.NoError(t, err) {
			req.Header = header
			resp, err := tr.RoundTrip(req)
			if assert.NoError(t, err) {
				resp.Body.Close()
			}
		}
	}
	failing, nesting := http.Header{"Fails": {"1"}}, http.Header{"Nests": {"1"}}
	tr.Base = roundTripperFunc(func(req *http.Request) (*http.Response, error) {
		status := http.StatusOK
		switch {
		case req.Header["Fails"] != nil:
			status = http.StatusServiceUnavailable
			down.Add(1)
		case req.Header["Nests"] != nil:
			get(req.URL.Host, failing)
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
	})
	rounds := 300
	if raceEnabled {
		rounds = 100
	}
	done := make(chan struct{})
	var swapping, working sync.WaitGroup
	swapping.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			assert.NoError(t, tr.SetPolicies(tr.Policy, map[string]Policy{fmt.Sprintf("*.other%d.example", i%3): {}}))
		}
	})
	for _, host := range append(sameMark(4), "a.example", "b.example:8443") {
		working.Go(func() {
			tokens := func() float64 {
				return must(tr.HostState(keyOf(&url.URL{Scheme: "https", Host: host}).String())).Tokens
			}
			for range rounds {
				get(host, nesting)
				if !assert.InDelta(t, 4.7, tokens(), 1e-9, "a failed retry takes half a token, a success gives 0.2") {
					return
				}
				get(host, nil)
				get(host, nil)
				if !assert.InDelta(t, 5, tokens(), 1e-9) {
					return
				}
			}
		})
	}
	working.Wait()
	close(done)
	swapping.Wait()
	assert.Empty(t, tr.HostStates())
}
