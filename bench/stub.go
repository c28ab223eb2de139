// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
)

// stub is an in-memory base. It reads and closes the request body, as a base
// must. It allocates nothing, so that all garbage is the peer's; it reuses a
// response after its body has been closed.
type stub struct {
	fail int // number of 503 answers before each 200
	n    int // answers before the next 200; serial use only

	only  answer // the answer, if known is set
	known *known // if not nil, the body of each answer; serial use only
}

// known is a body of a type that retrip recognizes as it recognizes net/http's
// own: Close ends a Read of it. A real base gives such bodies, and discarding
// one of an unknown type costs more.
type known struct {
	*strings.Reader
	body io.ReadCloser
}

func newKnown() *known {
	r := strings.NewReader("sixteen bytes ok")
	return &known{r, io.NopCloser(r)}
}

type answer struct {
	http.Response
	rest int
	open bool
}

func (a *answer) Read(p []byte) (int, error) {
	if a.rest == 0 {
		return 0, io.EOF
	}
	n := min(len(p), a.rest)
	a.rest -= n
	return n, nil
}

func (a *answer) Close() error {
	if a.open {
		a.open = false
		answers.Put(a)
	}
	return nil
}

var (
	answers = sync.Pool{New: func() any { return new(answer) }}
	header  = http.Header{"Content-Type": {"text/plain"}}
	buffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}
)

func (s *stub) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		buffer := buffers.Get().(*[32 << 10]byte)
		for {
			if _, err := req.Body.Read(buffer[:]); err != nil {
				break
			}
		}
		buffers.Put(buffer)
		req.Body.Close()
	}
	a := &s.only
	if s.known == nil {
		a = answers.Get().(*answer)
	}
	a.Response = http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
	a.rest, a.open = 16, true
	if s.fail > 0 {
		if s.n < s.fail {
			a.StatusCode = http.StatusServiceUnavailable
			s.n++
		} else {
			s.n = 0
		}
	}
	a.Header, a.ContentLength, a.Request, a.Body = header, 16, req, a
	if s.known != nil {
		s.known.Reset("sixteen bytes ok")
		a.Body = s.known.body
	}
	return &a.Response, nil
}

// call is a request that is made repeatedly. Some peers modify the request they
// get, so each use restores all of it.
type call struct {
	req, fresh *http.Request
	reader     *bytes.Reader
	payload    []byte
}

// newCall returns a call with a body of the given size, which either has
// GetBody or is a stream.
func newCall(ctx context.Context, method, url string, size int, stream bool) *call {
	c := &call{}
	var body io.Reader
	if size > 0 {
		c.payload = make([]byte, size)
		c.reader = bytes.NewReader(c.payload)
		body = c.reader
		if stream {
			body = struct{ io.Reader }{c.reader}
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		panic(err)
	}
	req.ContentLength = int64(size)
	c.fresh = req
	c.req = req.WithContext(ctx)
	return c
}

func (c *call) next() *http.Request {
	if c.reader != nil {
		c.reader.Reset(c.payload)
	}
	*c.req = *c.fresh
	return c.req
}

var cancellable, _ = context.WithCancel(context.Background())

// deep returns a context like that of a server's handler: cancelable and ten
// levels deep.
func deep() context.Context {
	type key int
	ctx := cancellable
	for i := range 9 {
		ctx = context.WithValue(ctx, key(i), i)
	}
	return ctx
}
