// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
)

const content = "sixteen bytes ok"

// stub is an in-memory base for one request at a time. It reads and closes the
// request body, as a base must. It allocates nothing, so that all garbage is the
// peer's; each answer is the same Response again.
type stub struct {
	fails  int // number of 503 answers before each 200
	n      int // of them since the last 200
	answer http.Response

	// The body of each answer is of a type that retrip recognizes as it recognizes
	// net/http's own: Close ends a Read of it. Discarding one of an unknown type
	// costs more.
	reader *strings.Reader
	body   io.ReadCloser
}

func newStub(fails int) *stub {
	r := strings.NewReader(content)
	return &stub{fails: fails, reader: r, body: io.NopCloser(r)}
}

var (
	header = http.Header{"Content-Type": {"text/plain"}}
	sink   [32 << 10]byte
)

func (s *stub) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		for {
			if _, err := req.Body.Read(sink[:]); err != nil {
				break
			}
		}
		req.Body.Close()
	}
	status := http.StatusOK
	if s.n < s.fails {
		status = http.StatusServiceUnavailable
		s.n++
	} else {
		s.n = 0
	}
	s.reader.Reset(content)
	s.answer = http.Response{
		StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header, ContentLength: int64(len(content)), Request: req, Body: s.body,
	}
	return &s.answer, nil
}

// call is a request that is made repeatedly. Some peers modify the request they
// get, so each use restores all of it.
type call struct {
	req, fresh *http.Request
	ctx        context.Context // nil: the request isn't made anew
	cancel     context.CancelFunc
	reader     *bytes.Reader
	payload    []byte
}

// newCall returns a call with a body of the given size, which has GetBody.
func newCall(method, url string, size int) *call {
	c := &call{}
	var body io.Reader
	if size > 0 {
		c.payload = make([]byte, size)
		c.reader = bytes.NewReader(c.payload)
		body = c.reader
	}
	req, err := http.NewRequestWithContext(context.Background(), method, url, body)
	if err != nil {
		panic(err)
	}
	c.fresh = req
	c.req = req.WithContext(context.Background())
	return c
}

func (c *call) next() *http.Request {
	if c.reader != nil {
		c.reader.Reset(c.payload)
	}
	if c.ctx != nil {
		req, err := http.NewRequestWithContext(c.ctx, c.fresh.Method, target, nil)
		if err != nil {
			panic(err)
		}
		return req
	}
	*c.req = *c.fresh
	return c.req
}
