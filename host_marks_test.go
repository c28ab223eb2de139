// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/testenv"
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
		"ports": func(i int) string { return fmt.Sprintf("127.0.0.%d:%d", i>>15, 1+i&0x7fff) },
	} {
		t.Run(name, func(t *testing.T) {
			const hosts = 1 << 17
			var stripes [hostStripes]int
			var marks [64 * len(hostMarks{})]int
			for i := range hosts {
				hash := hashOf(&url.URL{Scheme: "https", Host: host(i)})
				stripes[hash%hostStripes]++
				word, mark := mark(hash)
				for n := range 64 {
					marks[64*word+n] += int(mark >> n & 1)
				}
			}
			for _, n := range stripes {
				assert.InDelta(t, hosts/len(stripes), n, hosts/float64(len(stripes))/4)
			}
			for _, n := range marks {
				assert.InDelta(t, 3*hosts/len(marks), n, 1.5*hosts/float64(len(marks)))
			}
		})
	}
}

// likeFirst returns n hosts of one stripe. The marks of all but the first share
// the given number of their three bits with that of the first.
func likeFirst(n, shared int) []string {
	var hosts []string
	var first, mine uint64
	var word int
	for i := 0; len(hosts) < n; i++ {
		host := "host" + strconv.Itoa(i) + ".example"
		hash := hashOf(&url.URL{Scheme: "https", Host: host})
		if hosts == nil {
			// In one process of 22, two of the bits of the first host's mark are
			// the same, and in one of 4096 all three. Then no other shares two.
			if word, mine = mark(hash); bits.OnesCount64(mine) == 3 {
				first, hosts = hash, []string{host}
			}
			continue
		}
		if w, b := mark(hash); w == word && bits.OnesCount64(b&mine) == shared && hash%hostStripes == first%hostStripes {
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// A bit stays as long as a host has it that stays, whichever others come and go.
func TestHostMarks_Model(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	hashes := make([]uint64, 40)
	for i := range hashes {
		// Marks in two words, of bits 0 to 3.
		hashes[i] = random.Uint64() & (3 | 3<<6 | 3<<12 | 1<<18) * hostStripes
	}
	var marks hostMarks
	stay := map[hostKey]*hostEntry{}
	for step := range 20_000 {
		i := random.IntN(len(hashes))
		key, hash := hostKey{host: strconv.Itoa(i)}, hashes[i]
		if stay[key] == nil {
			stay[key] = &hostEntry{hash: hash}
			marks.add(hash)
		} else {
			delete(stay, key)
			marks.remove(hash, stay)
		}
		var want hostMarks
		for _, e := range stay {
			require.True(t, marks.has(e.hash), "step %d", step)
			want.add(e.hash)
		}
		for i := range want {
			require.Equal(t, want[i].Load(), marks[i].Load(), "step %d", step)
		}
	}
}

// In a full table, the marks of hosts in trouble cover that of one healthy host
// in about 580.
func TestHostMarks_RarelyCovered(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	stripes := make([]hostMarks, hostStripes)
	// hashIn returns the hash of a host of a stripe.
	hashIn := func(stripe int) uint64 { return random.Uint64()/hostStripes*hostStripes + uint64(stripe) }
	for i := range hostStripes * hostsPerStripe {
		stripes[i%hostStripes].add(hashIn(i % hostStripes))
	}
	const healthy = 1 << 20
	covered := 0
	for i := range healthy {
		if stripes[i%hostStripes].has(hashIn(i % hostStripes)) {
			covered++
		}
	}
	assert.InDelta(t, 1.0/580, float64(covered)/healthy, 0.0001)
}

// The marks of hosts in trouble may cover that of another host, and prove
// nothing about it. They stay as long as their own hosts are in trouble.
func TestHostMarks_Covered(t *testing.T) {
	var table hostTable
	r := defaultRules(t, Policy{})
	calm := func(host string) bool {
		return table.calm(&hostLookup{url: &url.URL{Scheme: "https", Host: host}})
	}
	hosts := likeFirst(1, 0)
	hash := hashOf(&url.URL{Scheme: "https", Host: hosts[0]})
	stripe := &table.stripes[hash%hostStripes]
	for _, host := range likeFirst(40, 1)[1:] {
		hosts = append(hosts, host)
		failAt(&table, hostKey{host, "443"}, r, refusal, 0)
	}
	require.True(t, stripe.marks.has(hash), "covered")
	assert.True(t, calm(hosts[0]))
	for i, host := range hosts[1:] {
		for range 3 {
			assert.False(t, calm(host))
			succeedAt(&table, hostKey{host, "443"}, r, 0)
		}
		assert.True(t, calm(host), i)
	}
	for n := range stripe.marks {
		assert.Zero(t, stripe.marks[n].Load())
	}
}

// A host in trouble is never taken for a healthy one: not while others that
// share its stripe or its mark come and go, and not while someone looks at the
// table or replaces the policies.
func TestHostMarks_NeverForget(t *testing.T) {
	var table hostTable
	r := defaultRules(t, Policy{})
	hosts := append(append(likeFirst(4, 1), likeFirst(4, 2)[1:]...), "a.example", "b.example")
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
	if testenv.Race {
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
		case req.Header["Nests"] != nil:
			get(req.URL.Host, failing)
		}
		return &http.Response{StatusCode: status, Body: http.NoBody, Request: req}, nil
	})
	rounds := 300
	if testenv.Race {
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
	for _, host := range append(likeFirst(4, 2), "a.example", "b.example:8443") {
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
