// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/hostkey"
	"github.com/retrip/retrip/internal/testenv"
)

// used returns base in the state after its first request.
func used(base *http.Transport) *http.Transport {
	base.CloseIdleConnections()
	return base
}

// If this fails with a new release of Go, no retry uses another connection any
// more: check what registered reads.
func TestRegistered(t *testing.T) {
	t.Parallel()
	other := testenv.RoundTripper(nil)
	for _, scheme := range []string{"http", "https"} {
		assert.False(t, registered(&http.Transport{}, scheme))
		assert.False(t, registered(used(&http.Transport{}), scheme))
		assert.False(t, registered(used(cleanhttp.DefaultPooledTransport()), scheme))
		assert.False(t, registered(http.DefaultTransport.(*http.Transport), scheme))

		base := &http.Transport{}
		base.RegisterProtocol("file", other)
		assert.False(t, registered(used(base), scheme))
		base = &http.Transport{Protocols: new(http.Protocols)}
		base.Protocols.SetHTTP1(true)
		base.RegisterProtocol(scheme, other)
		assert.True(t, registered(used(base), scheme))
	}
}

func TestNewPool(t *testing.T) {
	t.Parallel()
	foreign := map[string]func(string, *tls.Conn) http.RoundTripper{"h2": nil}
	for _, tt := range []struct {
		name  string
		base  *http.Transport
		http1 bool // there is a pool for HTTP/1
		http2 bool // … for HTTP/2
	}{
		{"zero", &http.Transport{}, true, true},
		{"the default", cleanhttp.DefaultPooledTransport(), true, true},
		{"HTTP/2 off", &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}, true, true},
		{"a foreign HTTP/2", &http.Transport{TLSNextProto: foreign}, false, false},
		{"no kept connections", &http.Transport{DisableKeepAlives: true}, false, false},
		{"a limit", &http.Transport{MaxConnsPerHost: 2}, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			base := used(tt.base)
			for http2, want := range map[bool]bool{false: tt.http1, true: tt.http2} {
				pool := newPool(base, "https", http2)
				assert.Equal(t, want, pool != nil)
				if pool != nil {
					assert.Equal(t, idle, pool.IdleConnTimeout)
				}
			}
		})
	}
}

// net/http's own Clone of a transport in use offers HTTP/2 to servers and then
// can't speak it: https://go.dev/issue/39302.
func TestNewPool_SpeaksHTTP2AsTheBaseDoes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		base *http.Transport
		want bool
	}{
		"zero":            {&http.Transport{}, true},
		"own TLS config":  {&http.Transport{TLSClientConfig: &tls.Config{}}, false},
		"… and forced":    {&http.Transport{TLSClientConfig: &tls.Config{}, ForceAttemptHTTP2: true}, true},
		"switched off":    {&http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}, false},
		"the default one": {cleanhttp.DefaultPooledTransport(), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base := used(tt.base)
			pool := used(newPool(base, "https", true))
			assert.Equal(t, tt.want, base.TLSNextProto["h2"] != nil)
			assert.Equal(t, tt.want, pool.TLSNextProto["h2"] != nil)
			if tt.want {
				assert.Equal(t, base.TLSClientConfig.NextProtos, pool.TLSClientConfig.NextProtos)
			}
		})
	}
}

func TestSpares_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list Pools
		epoch, base := time.Now(), cleanhttp.DefaultPooledTransport()
		key := func(n int) Key { return Key{hostkey.Key{Host: strconv.Itoa(n), Port: "443"}, "https", true} }
		get := func(n int) *Pool {
			turn := list.Get(epoch, base, key(n), -1, time.Second)
			require.NotNil(t, turn)
			return turn.pool
		}
		first := get(0)
		for n := range 10 * most {
			time.Sleep(time.Millisecond)
			get(n)
			assert.Same(t, first, get(0), "a spare in use stays")
		}
		assert.Len(t, list.list, most)
		assert.NotContains(t, list.list, key(1))
		assert.Contains(t, list.list, key(10*most-1))

		list.Close()
		assert.Empty(t, list.list)
	})
}

//retrip:promise P13
func TestSpares_UnusedOnesGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list Pools
		epoch, base := time.Now(), cleanhttp.DefaultPooledTransport()
		key := func(n int) Key { return Key{hostkey.Key{Host: strconv.Itoa(n), Port: "443"}, "https", true} }
		get := func(n int) *Pool { return list.Get(epoch, base, key(n), -1, time.Second).pool }
		kept := func() (n int) {
			synctest.Wait()
			list.mu.Lock()
			defer list.mu.Unlock()
			return len(list.list)
		}
		for n := range 10 {
			get(n)
		}
		time.Sleep(idle - time.Millisecond)
		assert.Equal(t, 10, kept())
		used := get(0)
		time.Sleep(time.Millisecond)
		assert.Equal(t, 1, kept(), "the one that was used last")
		for range 10 {
			time.Sleep(idle / 2)
			assert.Same(t, used, get(0))
		}
		time.Sleep(idle - time.Millisecond)
		assert.Equal(t, 1, kept())
		time.Sleep(time.Millisecond)
		assert.Zero(t, kept())

		// The timer of a spare that is gone doesn't remove its successor.
		get(0)
		time.Sleep(idle / 2)
		list.Close()
		get(0)
		time.Sleep(idle - time.Millisecond)
		assert.Equal(t, 1, kept())
		time.Sleep(time.Millisecond)
		assert.Zero(t, kept())
	})
}

// A spare doesn't keep the URL of the request for which it was made.
//
//retrip:promise P13
func TestSpares_KeepNoURLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hosts, query = 50, 1 << 20
		var list Pools
		epoch, base := time.Now(), cleanhttp.DefaultPooledTransport()
		before := testenv.Heap()
		for i := range hosts {
			u, err := url.Parse("https://" + strconv.Itoa(i) + ".example:8080/?" + strings.Repeat("x", query))
			require.NoError(t, err)
			require.NotNil(t, list.Get(epoch, base, Key{hostkey.Of(u), u.Scheme, true}, -1, time.Second))
		}
		assert.Less(t, testenv.Heap()-before, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
		assert.Len(t, list.list, hosts)
		list.Close()
	})
}

func TestSpare_Fresh(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var list Pools
		epoch, base := time.Now(), cleanhttp.DefaultPooledTransport()
		key := Key{hostkey.Key{Host: "example.com", Port: "443"}, "https", true}
		get := func(since time.Duration) *Pool { return list.Get(epoch, base, key, since, time.Second).pool }
		time.Sleep(time.Second)
		p := get(0)
		assert.Same(t, p, get(999*time.Millisecond), "made after the attempt began")
		time.Sleep(time.Second)
		assert.Same(t, p, get(1500*time.Millisecond), "still connecting")
		p.had = true
		p.answered.Store(int64(time.Since(epoch)))
		assert.Same(t, p, get(1500*time.Millisecond), "answered after the attempt began")
		p.http2 = false
		assert.False(t, p.fresh(time.Since(epoch), 1500*time.Millisecond, 0), "another connection may have answered")
		p.http2 = true
		time.Sleep(time.Second)
		next := get(2 * time.Second)
		assert.NotSame(t, p, next, "neither")
		assert.Same(t, next, get(2*time.Second))
		assert.Len(t, list.list, 1)

		time.Sleep(12*time.Second - time.Millisecond)
		assert.Same(t, next, get(14*time.Second), "connecting for four attempts of 3 s")
		time.Sleep(time.Millisecond)
		p = get(14 * time.Second)
		assert.NotSame(t, next, p, "its dial hangs")
		assert.True(t, p.fresh(time.Since(epoch)+4*time.Second-1, 20*time.Second, time.Millisecond))
		assert.False(t, p.fresh(time.Since(epoch)+4*time.Second, 20*time.Second, time.Millisecond), "however short the attempts")

		// The base has answered.
		turn := func(since time.Duration) *Turn { return list.Get(epoch, base, key, since, time.Second) }
		list.Answered(epoch, key)
		assert.Nil(t, turn(time.Since(epoch)-1))
		assert.NotNil(t, turn(time.Since(epoch)))
		assert.True(t, list.Some())
		list.Close()
		assert.False(t, list.Some())
		list.Answered(epoch, key)
		assert.Empty(t, list.list, "of no interest")
	})
}
