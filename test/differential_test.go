// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"net/textproto"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// observation is everything that a caller and the server can see of a request.
type observation struct {
	Status, Proto    string
	Header, Trailer  http.Header
	Body             string
	BodyErr, Err     string
	ErrTypes         string
	Timeout          bool
	Length           int64
	Uncompressed     bool
	Close            bool
	Encoding         []string
	TLS              bool
	OwnRequest       bool // Response.Request is the request that was sent
	FinalURL         string
	BodyClosed       int32 // the request's
	Interim, Replies int   // 1xx seen, first response bytes seen
	Conns            int   // connections got
	Took             time.Duration
	Served           []string // what the server saw
}

// errTypes returns the types of err and of all errors that it wraps.
func errTypes(err error) string {
	var types []string
	for ; err != nil; err = errors.Unwrap(err) {
		types = append(types, fmt.Sprintf("%T", err))
	}
	return strings.Join(types, " ")
}

// differentialServer answers in every way that a script selects by its path.
func differentialServer(served *[]string, mu *sync.Mutex) http.Handler {
	mux := http.NewServeMux()
	handle := func(path string, h http.HandlerFunc) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			line := func(body string) {
				mu.Lock()
				defer mu.Unlock()
				*served = append(*served, fmt.Sprintf("%s %s %s length %d %v %v body %d %x trailer %v", r.Method, r.URL, r.Proto,
					r.ContentLength, r.TransferEncoding, r.Header, len(body), sha256.Sum256([]byte(body)), r.Trailer))
			}
			if r.Body != nil && path != "/early" && path != "/expect-no" {
				b, _ := io.ReadAll(r.Body)
				line(string(b))
				r.Body = io.NopCloser(bytes.NewReader(b))
			} else {
				line("unread")
			}
			w.Header()["Date"] = nil
			h(w, r)
		})
	}
	handle("/echo", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	for _, status := range []int{204, 304, 400, 401, 404, 409} {
		handle(fmt.Sprint("/", status), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-A", "1")
			w.WriteHeader(status)
			if status >= 400 {
				fmt.Fprint(w, "no ", status)
			}
		})
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		handle(fmt.Sprint("/", status), func(w http.ResponseWriter, r *http.Request) {
			http.SetCookie(w, &http.Cookie{Name: "from", Value: fmt.Sprint(status)})
			w.Header().Set("Location", "/echo?to")
			w.WriteHeader(status)
		})
	}
	handle("/gzip", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprint(z, strings.Repeat("compressed ", 1000))
		_ = z.Close()
	})
	handle("/chunked", func(w http.ResponseWriter, _ *http.Request) {
		for i := range 5 {
			fmt.Fprint(w, i)
			play.Flush(w)
			time.Sleep(time.Second)
		}
	})
	handle("/trailers", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, "body")
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	})
	handle("/1xx", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "<a>")
		w.WriteHeader(103)
		w.WriteHeader(102)
		w.WriteHeader(200)
	})
	handle("/early", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
	})
	handle("/expect-no", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusExpectationFailed) })
	handle("/cut", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "100")
		fmt.Fprint(w, "short")
		play.Flush(w)
		panic(http.ErrAbortHandler)
	})
	handle("/close", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Connection", "close") })
	handle("/hang", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	handle("/silent", func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	})
	handle("/503", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "later", http.StatusServiceUnavailable) })
	return mux
}

// differential is one request of the script, for which retrip makes one
// attempt.
type differential struct {
	name   string
	method string
	path   string
	body   func() io.Reader
	change func(*http.Request)
	client func(*http.Client)
	// only limits the request to protocols of that major version.
	only int
	// racy says that net/http's own error text varies, because several of its
	// goroutines see the end of the request at once.
	racy bool
}

func differentialScript() []differential {
	text := func() io.Reader { return strings.NewReader("a body with GetBody") }
	plain := func() io.Reader { return play.Stream([]byte("a body without GetBody")) }
	large := func() io.Reader { return play.Stream(play.Pattern(300 << 10)) }
	noFollow := func(c *http.Client) {
		c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	}
	script := []differential{
		{name: "GET", method: "GET", path: "/echo"},
		{name: "no method", path: "/echo"},
		{name: "HEAD", method: "HEAD", path: "/gzip"},
		{name: "HEAD of an error", method: "HEAD", path: "/404"},
		{name: "OPTIONS", method: "OPTIONS", path: "/echo"},
		{name: "POST", method: "POST", path: "/echo", body: text},
		{name: "POST of a stream", method: "POST", path: "/echo", body: plain},
		{name: "PUT of a stream with a length", method: "PUT", path: "/echo", body: plain, change: func(r *http.Request) { r.ContentLength = 22 }},
		{name: "POST of a stream with a wrong length", method: "POST", path: "/silent", body: plain, change: func(r *http.Request) { r.ContentLength = 10 }, only: 1, racy: true},
		{name: "PUT of a stream that is shorter", method: "PUT", path: "/silent", body: plain, change: func(r *http.Request) { r.ContentLength = 23 }, only: 1, racy: true},
		{name: "PUT of a buffer that is longer", method: "PUT", path: "/silent", body: text, change: func(r *http.Request) { r.ContentLength = 3 }, only: 1, racy: true},
		{name: "PUT of a section", method: "PUT", path: "/echo", body: func() io.Reader { return io.NewSectionReader(strings.NewReader("a section"), 2, 7) }},
		{name: "control character", method: "PUT", path: "/echo", body: plain, change: func(r *http.Request) { r.URL.RawQuery = "a\x01" }, only: 1},
		{name: "gone before", method: "PUT", path: "/echo", body: text, change: func(r *http.Request) {
			ctx, cancel := context.WithCancelCause(r.Context())
			cancel(errors.New("the user left"))
			*r = *r.WithContext(ctx)
		}},
		{name: "late before", method: "GET", path: "/echo", change: func(r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), -1)
			context.AfterFunc(ctx, cancel)
			*r = *r.WithContext(ctx)
		}},
		{name: "key with no value", method: "POST", path: "/echo", body: text, change: func(r *http.Request) { r.Header["Idempotency-Key"] = []string{} }},
		{name: "POST of no body", method: "POST", path: "/echo", body: func() io.Reader { return http.NoBody }},
		{name: "POST of an empty stream", method: "POST", path: "/echo", body: func() io.Reader { return play.Stream(nil) }},
		{name: "POST of much", method: "POST", path: "/echo", body: large},
		{name: "answered early", method: "POST", path: "/early", body: plain},
		{name: "gzip", method: "GET", path: "/gzip"},
		{name: "gzip by hand", method: "GET", path: "/gzip", change: func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") }},
		{name: "chunked", method: "GET", path: "/chunked"},
		{name: "trailers", method: "GET", path: "/trailers"},
		{name: "request trailers", method: "POST", path: "/echo", body: plain, change: func(r *http.Request) { r.Trailer = http.Header{"X-T": {"1"}} }},
		{name: "1xx", method: "GET", path: "/1xx"},
		{name: "cut", method: "GET", path: "/cut"},
		{name: "close", method: "GET", path: "/close"},
		{name: "own close", method: "GET", path: "/echo", change: func(r *http.Request) { r.Close = true }},
		{name: "own host", method: "GET", path: "/echo", change: func(r *http.Request) { r.Host = "other.example.com" }},
		{name: "503 on POST", method: "POST", path: "/503", body: text},
		{name: "Expect", method: "POST", path: "/echo", body: plain, change: func(r *http.Request) { r.Header.Set("Expect", "100-continue") }},
		{name: "Expect, refused", method: "POST", path: "/expect-no", body: plain, change: func(r *http.Request) { r.Header.Set("Expect", "100-continue") }},
		{name: "timeout of the client", method: "GET", path: "/hang", client: func(c *http.Client) { c.Timeout = 3 * time.Second }, racy: true},
		{name: "bad scheme", method: "GET", path: "/echo", change: func(r *http.Request) { r.URL.Scheme = "rstp" }},
		{name: "bad header", method: "GET", path: "/echo", change: func(r *http.Request) { r.Header["X"] = []string{"a\nb"} }},
		{name: "bad method", method: "GET", path: "/echo", change: func(r *http.Request) { r.Method = "A B" }},
		{name: "length without body", method: "POST", path: "/echo", change: func(r *http.Request) { r.ContentLength = 5 }},
		{name: "canceled", method: "POST", path: "/hang", change: func(r *http.Request) {
			ctx, cancel := context.WithCancel(r.Context())
			time.AfterFunc(time.Second, cancel)
			*r = *r.WithContext(ctx)
		}},
		{name: "deadline", method: "POST", path: "/hang", body: text, change: func(r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), time.Second)
			context.AfterFunc(ctx, cancel)
			*r = *r.WithContext(ctx)
		}},
		{name: "body fails", method: "POST", path: "/echo", body: func() io.Reader {
			return io.MultiReader(strings.NewReader("half"), testenv.Reader(func([]byte) (int, error) { return 0, errors.New("disk") }))
		}},
	}
	for _, status := range []int{204, 304, 400, 401, 404, 409} {
		script = append(script, differential{name: fmt.Sprint(status), method: "GET", path: fmt.Sprint("/", status)})
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		path := fmt.Sprint("/", status)
		script = append(script,
			differential{name: "GET " + path, method: "GET", path: path},
			differential{name: "POST " + path, method: "POST", path: path, body: text},
			differential{name: "POST of a stream " + path, method: "POST", path: path, body: plain},
			differential{name: "not followed " + path, method: "GET", path: path, client: noFollow})
	}
	return script
}

// observe makes the request d with a fresh client. wrap puts the Transport
// around a fresh base.
func observe(t *testing.T, proto memhttp.Proto, d differential, wrap func(http.RoundTripper) http.RoundTripper) observation {
	var mu sync.Mutex
	var served []string
	s := memhttp.NewServer(t, proto, differentialServer(&served, &mu))
	base := s.Transport()
	base.ExpectContinueTimeout = time.Second
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	var sent *http.Request
	c := &http.Client{Transport: wrap(base), Jar: jar}
	inner := c.Transport
	c.Transport = clientBase{testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		sent = r
		return inner.RoundTrip(r)
	})}
	if d.client != nil {
		d.client(c)
	}
	// The URLs of the two servers have different ports.
	u := "http://example.com" + d.path
	if strings.HasPrefix(s.URL, "https") {
		u = "https://example.com" + d.path
	}
	var body *play.SendBody
	var reader io.Reader
	if d.body != nil {
		reader = d.body()
	}
	req := play.MustRequest(t, d.method, u, reader)
	if req.Body != nil && req.Body != http.NoBody {
		body = &play.SendBody{Reader: req.Body}
		req.Body = body
	}
	o := observation{}
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		Got1xxResponse:       func(int, textproto.MIMEHeader) error { o.Interim++; return nil },
		GotFirstResponseByte: func() { o.Replies++ },
		GotConn:              func(httptrace.GotConnInfo) { o.Conns++ },
	})
	req = req.WithContext(ctx)
	if d.change != nil {
		d.change(req)
	}
	start := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		if o.Replies = 0; !d.racy { // whether net/http sees a reply as the request fails is chance
			o.Err, o.ErrTypes = err.Error(), errTypes(err)
		}
		var ue *url.Error
		o.Timeout = errors.As(err, &ue) && ue.Timeout()
	} else {
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			o.BodyErr = err.Error() + errTypes(err)
		}
		assert.NoError(t, resp.Body.Close())
		o.Status, o.Proto, o.Header, o.Trailer, o.Body = resp.Status, resp.Proto, resp.Header, resp.Trailer, string(b)
		o.Length, o.Uncompressed, o.Close, o.Encoding, o.TLS = resp.ContentLength, resp.Uncompressed, resp.Close, resp.TransferEncoding, resp.TLS != nil
		o.OwnRequest, o.FinalURL = resp.Request == sent, resp.Request.URL.String()
	}
	o.Took = time.Since(start)
	time.Sleep(time.Minute)
	if body != nil {
		o.BodyClosed = min(1, body.Closed.Load())
	}
	c.CloseIdleConnections()
	base.CloseIdleConnections()
	synctest.Wait()
	mu.Lock()
	defer mu.Unlock()
	o.Served = append(o.Served, served...)
	return o
}

// clientBase hides the type of a RoundTripper from http.Client, which treats a
// bare http.Transport specially.
type clientBase struct{ http.RoundTripper }

// The same script through bare net/http and through retrip gives the same
// observations.
//
//retrip:promise P1 P3 P4
func TestDifferential(t *testing.T) {
	zero := func(base http.RoundTripper) http.RoundTripper { return &retrip.Transport{Base: base} }
	full := func(base http.RoundTripper) http.RoundTripper { return contractEnv{full: true}.transport(base) }
	none := func(base http.RoundTripper) http.RoundTripper { return base }
	comparisons := []struct {
		base string
		bare func(http.RoundTripper) http.RoundTripper
		ours map[string]func(http.RoundTripper) http.RoundTripper
	}{
		{"a Transport", none, map[string]func(http.RoundTripper) http.RoundTripper{
			"zero":   zero,
			"full":   full,
			"nested": func(base http.RoundTripper) http.RoundTripper { return full(full(base)) },
		}},
		{"a base that clones", cloning, map[string]func(http.RoundTripper) http.RoundTripper{
			"zero": func(base http.RoundTripper) http.RoundTripper { return zero(cloning(base)) },
			"full": func(base http.RoundTripper) http.RoundTripper { return full(cloning(base)) },
		}},
	}
	for _, c := range comparisons {
		for _, d := range differentialScript() {
			for _, proto := range play.Protos {
				if d.only == 1 && (proto == memhttp.HTTP2 || proto == memhttp.H2C) {
					continue
				}
				play.Bubble(t, fmt.Sprintf("%s/%s/%s", d.name, c.base, proto), func(t *testing.T) {
					want := observe(t, proto, d, c.bare)
					for name, ours := range c.ours {
						assert.Equal(t, want, observe(t, proto, d, ours), name)
					}
				})
			}
		}
	}
}

// cloning returns a base that makes a request and a context of its own from
// what it gets, like bases that sign or trace.
func cloning(base http.RoundTripper) http.RoundTripper {
	type key struct{}
	return testenv.RoundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(context.WithValue(r.Context(), key{}, "own"))
		r.Header.Set("X-Signature", fmt.Sprint(len(r.Header)))
		return base.RoundTrip(r)
	})
}
