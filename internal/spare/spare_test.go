// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package spare

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"runtime"
	"runtime/debug"
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
	other := testenv.RoundTripper(nil)
	assert.False(t, Registered(&http.Transport{}))
	assert.False(t, Registered(used(&http.Transport{})))
	assert.False(t, Registered(used(cleanhttp.DefaultPooledTransport())))
	assert.False(t, Registered(http.DefaultTransport.(*http.Transport)))

	base := &http.Transport{}
	base.RegisterProtocol("file", other)
	assert.False(t, Registered(used(base)))
	for _, scheme := range []string{"http", "https"} {
		base = &http.Transport{Protocols: new(http.Protocols)}
		base.Protocols.SetHTTP1(true)
		base.RegisterProtocol(scheme, other)
		assert.True(t, Registered(used(base)))
	}
}

// There is a pool where a copy of the base would behave like it. net/http's own Clone of a
// transport in use offers HTTP/2 to servers and then can't speak it: https://go.dev/issue/39302.
func TestPool(t *testing.T) {
	type protocols = map[string]func(string, *tls.Conn) http.RoundTripper
	for name, tt := range map[string]struct {
		base         *http.Transport
		http1, http2 bool // there is a pool for it
		speaks       bool // HTTP/2, as the base does
	}{
		"zero":                {&http.Transport{}, true, true, true},
		"the default":         {cleanhttp.DefaultPooledTransport(), true, true, true},
		"own TLS config":      {&http.Transport{TLSClientConfig: &tls.Config{}}, true, true, false},
		"… and forced":        {&http.Transport{TLSClientConfig: &tls.Config{}, ForceAttemptHTTP2: true}, true, true, true},
		"HTTP/2 off":          {&http.Transport{TLSNextProto: protocols{}}, true, true, false},
		"a foreign HTTP/2":    {&http.Transport{TLSNextProto: protocols{"h2": nil}}, false, false, false},
		"no kept connections": {&http.Transport{DisableKeepAlives: true}, false, false, true},
		"a limit":             {&http.Transport{MaxConnsPerHost: 2}, false, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			base := used(tt.base)
			assert.Equal(t, tt.speaks, base.TLSNextProto["h2"] != nil)
			for http2, want := range map[bool]bool{false: tt.http1, true: tt.http2} {
				pool := new(Pools).pool(base, http2)
				require.Equal(t, want, pool != nil)
				if pool == nil {
					continue
				}
				assert.Equal(t, base.Proxy != nil, pool.Proxy != nil)
				assert.NotEqual(t, http2, pool.DisableKeepAlives)
				assert.Equal(t, tt.speaks, used(pool.Transport).TLSNextProto["h2"] != nil)
				if tt.speaks {
					assert.Equal(t, base.TLSClientConfig.NextProtos, pool.TLSClientConfig.NextProtos)
				}
			}
		})
	}
}

// hostNumber returns the key of a host.
func hostNumber(n int) hostkey.Key { return hostkey.Key{Host: strconv.Itoa(n), Port: "443"} }

func TestSpares_AreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list Pools
		defer list.Close()
		base := cleanhttp.DefaultPooledTransport()
		for n := range 10 * most {
			require.NotNil(t, list.Get(base, hostNumber(n), time.Now(), time.Second))
		}
		list.mu.Lock()
		assert.Len(t, list.hosts, most)
		assert.Contains(t, list.hosts, hostNumber(10*most-1))
		list.mu.Unlock()
		time.Sleep(idle + 1) // until then, the runtime may keep stopped timers, and what they hold
		synctest.Wait()
		runtime.GC()
		list.Get(base, hostNumber(10*most), time.Now(), time.Second)
		assert.Less(t, len(list.made), most, "spares that are gone")
	})
}

// However many connections of their own attempts have had, the next costs what the first did: one
// clone, and no search for spares that are gone unless there was a garbage collection.
//
//retrip:promise P15
func TestSpares_EachCostsTheSame(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	var list Pools
	base := used(cleanhttp.DefaultPooledTransport())
	require.True(t, list.Allows(base))
	swept := list.swept.Value()
	require.NotNil(t, swept)
	for range 1000 {
		require.True(t, list.Allows(base))
		require.NotNil(t, list.Once(base, time.Second))
	}
	assert.Same(t, swept, list.swept.Value())
	assert.Len(t, list.made, 1+1000)
}

//retrip:promise P13
func TestSpares_UnusedOnesGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var list Pools
		base := cleanhttp.DefaultPooledTransport()
		get := func(n int) *pool { return list.Get(base, hostNumber(n), time.Now(), time.Second).pool }
		kept := func() (n int) {
			synctest.Wait()
			list.mu.Lock()
			defer list.mu.Unlock()
			assert.Equal(t, len(list.hosts) > 0, list.Some())
			return len(list.hosts)
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

		get(0)
		list.Close()
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
	testenv.OneGoroutine(t)
	synctest.Test(t, func(t *testing.T) {
		const hosts, query = 50, 1 << 20
		var list Pools
		base := cleanhttp.DefaultPooledTransport()
		before := testenv.Heap()
		for i := range hosts {
			u, err := url.Parse("https://" + strconv.Itoa(i) + ".example:8080/?" + strings.Repeat("x", query))
			require.NoError(t, err)
			require.NotNil(t, list.Get(base, hostkey.Of(u), time.Now(), time.Second))
		}
		assert.Less(t, testenv.Heap()-before, int64(hosts*query/10), "bytes kept for %d hosts", hosts)
		assert.Len(t, list.hosts, hosts)
		list.Close()
	})
}

type closeNoter struct {
	io.Reader
	closed int
}

func (c *closeNoter) Close() error { c.closed++; return nil }

// try makes a request at a spare whose requests rt makes. The base must not dial.
func try(t *testing.T, req *http.Request, rt testenv.RoundTripper) (*http.Response, error) {
	own := &http.Transport{Protocols: new(http.Protocols)}
	own.RegisterProtocol("http", rt)
	base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		t.Error("a dial")
		return nil, errors.New("no network")
	}}
	turn := &Turn{pools: new(Pools), host: new(host), base: base, patience: time.Second, pool: &pool{Transport: own}, works: context.Background()}
	return turn.RoundTrip(req)
}

func newRequest(t *testing.T, ctx context.Context, body io.Reader) *http.Request {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://example.com", body)
	require.NoError(t, err)
	return req
}

// connects says that r has got a connection.
func connects(r *http.Request) {
	httptrace.ContextClientTrace(r.Context()).GotConn(httptrace.GotConnInfo{})
}

// A request that gives up just as it gets a connection may have been sent. It
// doesn't go to the base as well.
//
//retrip:promise P18
func TestTurn_Late(t *testing.T) {
	for _, answers := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			answer, body := &closeNoter{Reader: strings.NewReader("answer")}, &closeNoter{Reader: strings.NewReader("body")}
			resp, err := try(t, newRequest(t, t.Context(), body), func(r *http.Request) (*http.Response, error) {
				<-r.Context().Done()
				connects(r)
				_ = r.Body.Close()
				if answers {
					return &http.Response{StatusCode: http.StatusOK, Body: answer}, nil
				}
				return nil, errors.New("request canceled")
			})
			assert.Nil(t, resp)
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			assert.True(t, timeout.Timeout())
			assert.Equal(t, 1, body.closed)
			assert.Equal(t, answers, answer.closed == 1)
		})
	}
}

// A caller's own Cancel channel still ends the attempt.
//
//retrip:promise P10
func TestTurn_CallersCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, began := make(chan struct{}), time.Now()
		time.AfterFunc(time.Hour, func() { close(gone) })
		req := newRequest(t, t.Context(), nil)
		req.Cancel = gone //lint:ignore SA1019 it must be obeyed
		_, err := try(t, req, func(r *http.Request) (*http.Response, error) {
			connects(r)
			<-r.Cancel //lint:ignore SA1019 net/http obeys it
			return nil, errors.New("request canceled")
		})
		assert.Error(t, err)
		assert.Equal(t, time.Hour, time.Since(began))
	})
}
