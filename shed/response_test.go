// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package shed_test

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/memhttp"
	"github.com/retrip/retrip/shed"
)

// An event stream makes room for others as soon as it begins, and not before.
func TestStream_Events(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		end := make(chan struct{})
		h := &shed.Handler{Limit: 1, QueueTime: retrip.Off, HoldTime: retrip.Off, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/events" {
				return
			}
			time.Sleep(time.Second)              // the kind of response isn't known yet
			w.WriteHeader(http.StatusEarlyHints) // not the final response
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			_, _ = io.WriteString(w, "data: 1\n\n")
			rc := http.NewResponseController(w)
			assert.NoError(t, rc.SetWriteDeadline(time.Time{}), "it reaches net/http's own")
			assert.NoError(t, rc.Flush())
			w.(http.Flusher).Flush()
			<-end
			_, _ = io.WriteString(w, "data: 2\n\n")
		})}
		s := newSite(t, proto, h)
		req, err := http.NewRequest("GET", s.URL+"/events", nil)
		require.NoError(t, err)
		early := make(chan answered, 1)
		go func() {
			time.Sleep(500 * ms)
			early <- s.get("")
		}()
		resp, err := s.base.RoundTrip(req)
		require.NoError(t, err)
		assert.Equal(t, 503, (<-early).status, "it counts until it begins")
		line, err := bufio.NewReader(resp.Body).ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, "data: 1\n", line)
		assert.Zero(t, counted(t, h)["running_requests"])
		assert.Equal(t, 200, s.get("").status)
		close(end)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		synctest.Wait()
		assert.Equal(t, 200, s.get("").status)
		assert.Zero(t, counted(t, h)["running_requests"])
	})
}

// A response makes room as soon as it proves to be a stream or a tunnel, whatever its client accepts. No
// other does.
func TestStream_Kinds(t *testing.T) {
	t.Parallel()
	const events = "text/event-stream"
	for name, tt := range map[string]struct {
		method, kind string
		status       int
		begins       func(w http.ResponseWriter) // before the status
		frees        bool
	}{
		"events":               {"GET", "Text/Event-Stream; charset=utf-8", 200, nil, true},
		"JSON lines":           {"GET", "application/x-ndjson", 200, nil, true},
		"gRPC":                 {"POST", "application/grpc+proto", 200, nil, true},
		"parts":                {"GET", "multipart/mixed; boundary=-", 200, nil, true},
		"JSON":                 {"GET", "application/json", 200, nil, false},
		"an interim response":  {"GET", events, http.StatusEarlyHints, nil, false},
		"another protocol":     {"GET", "", http.StatusSwitchingProtocols, nil, true},
		"a tunnel":             {"CONNECT", "", 200, nil, true},
		"a refused tunnel":     {"CONNECT", "", 405, nil, false},
		"said after a Write":   {"GET", events, 200, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "{}") }, false},
		"said after ReadFrom":  {"GET", events, 200, func(w http.ResponseWriter) { _, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("{}")) }, false},
		"said after a Flush":   {"GET", events, 200, func(w http.ResponseWriter) { w.(http.Flusher).Flush() }, false},
		"said after a refusal": {"GET", events, 200, func(w http.ResponseWriter) { w.WriteHeader(404) }, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			end := make(chan struct{})
			h := &shed.Handler{Limit: 1, QueueTime: retrip.Off, HoldTime: retrip.Off, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.begins != nil {
					tt.begins(w)
				}
				w.Header().Set("Content-Type", tt.kind)
				w.WriteHeader(tt.status)
				<-end
			})}
			go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, "http://example.com/", nil))
			synctest.Wait()
			assert.Equal(t, tt.frees, counted(t, h)["running_requests"] == 0, name)
			close(end)
			synctest.Wait()
			assertIdle(t, h)
		})
	}
}

// A handler finds in its ResponseWriter what that of net/http has.
func TestResponse_Optional(t *testing.T) {
	below := &optional{ResponseRecorder: httptest.NewRecorder(), gone: make(chan bool)}
	h := &shed.Handler{Limit: 1, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.EqualError(t, w.(http.Pusher).Push("/style.css", nil), "pushed /style.css")
		assert.Equal(t, (<-chan bool)(below.gone), w.(interface{ CloseNotify() <-chan bool }).CloseNotify())
		n, err := w.(io.StringWriter).WriteString("text")
		assert.NoError(t, err)
		assert.Equal(t, 4, n)
		assert.Equal(t, "text", below.text)
	})}
	h.ServeHTTP(below, httptest.NewRequest("GET", "/", nil))
	plain := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		assert.Equal(t, http.ErrNotSupported, w.(http.Pusher).Push("/style.css", nil))
		select {
		case <-w.(interface{ CloseNotify() <-chan bool }).CloseNotify():
			t.Error("the client hasn't gone")
		default:
		}
	})
	direct(&shed.Handler{Limit: 1, Handler: plain}, "/")
}

type optional struct {
	*httptest.ResponseRecorder
	gone chan bool
	text string
}

func (o *optional) Push(target string, _ *http.PushOptions) error {
	return errors.New("pushed " + target)
}
func (o *optional) CloseNotify() <-chan bool { return o.gone }
func (o *optional) WriteString(text string) (int, error) {
	o.text = text
	return len(text), nil
}

// A handler that has read too much answers at once, as without a Handler around it: net/http
// doesn't see its own ResponseWriter in http.MaxBytesReader then.
func TestResponse_TooLarge(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, proto memhttp.Proto) {
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 10)); assert.Error(t, err) {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		})
		for _, h := range []http.Handler{handler, &shed.Handler{Limit: 1, Handler: handler}} {
			s := newSite(t, proto, h)
			for range 2 {
				a := do(t.Context(), s.base, "POST", s.URL, &slowly{100 << 10, 10 * ms})
				assert.NoError(t, a.err)
				assert.Equal(t, 413, a.status)
				assert.Equal(t, 10*ms, a.took)
			}
			time.Sleep(time.Minute)
		}
	})
}

// A hijacked connection makes room at once; its handler may return.
func TestStream_Hijack(t *testing.T) {
	t.Parallel()
	for i := range 4 {
		stays, asked := i%2 == 0, i < 2
		synctest.Test(t, func(t *testing.T) {
			h := &shed.Handler{Limit: 1, QueueTime: retrip.Off, HoldTime: retrip.Off, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/echo" {
					return
				}
				conn, rw, err := w.(http.Hijacker).Hijack()
				if !assert.NoError(t, err) {
					return
				}
				echo := func() {
					defer conn.Close()
					_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
					line, _ := rw.ReadString('\n')
					_, _ = io.WriteString(conn, line)
				}
				if stays {
					echo()
				} else {
					go echo()
				}
			})}
			s := newSite(t, memhttp.HTTP1, h)
			req, err := http.NewRequest("GET", s.URL+"/echo", nil)
			require.NoError(t, err)
			if asked {
				setHeader(req, []string{"Connection: Upgrade", "Upgrade: echo"})
			}
			resp, err := s.base.RoundTrip(req)
			require.NoError(t, err)
			assert.Equal(t, 101, resp.StatusCode)
			synctest.Wait()
			assert.Zero(t, counted(t, h)["running_requests"])
			for range 2 {
				assert.Equal(t, 200, s.get("").status)
			}
			conn := resp.Body.(io.ReadWriteCloser)
			_, err = io.WriteString(conn, "ping\n")
			require.NoError(t, err)
			text, err := io.ReadAll(conn)
			require.NoError(t, err)
			assert.Equal(t, "ping\n", string(text))
			conn.Close()
		})
	}
}

// A goroutine that wrongly keeps the ResponseWriter after its handler has
// returned doesn't free the place of another request.
func TestStream_KeptTooLong(t *testing.T) {
	t.Parallel()
	var kept http.ResponseWriter
	h := &shed.Handler{Limit: 1, QueueTime: retrip.Off}
	h.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if kept == nil {
			kept = w
			return
		}
		kept.Header().Set("Content-Type", "text/event-stream")
		kept.WriteHeader(200)
		assert.Equal(t, 1.0, counted(t, h)["running_requests"])
	})
	for range 2 {
		direct(h, "/", "Accept: text/event-stream")
	}
	assert.Zero(t, counted(t, h)["running_requests"])
}
