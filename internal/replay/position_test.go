// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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

// content is what kept bodies hold: more than Policy.MaxReplayBody, and than net/http
// reads at once.
var content = play.Pattern(200_000)

// kept is a request body that its caller keeps.
type kept struct {
	name string

	// What an attempt leaves of the body depends on its kind. A reader that can be
	// sought is where the last attempt has read to. A stream can't go back. A body with
	// GetBody is read by one attempt, and the later ones get copies, as in net/http.
	stream, copied bool

	// open returns the body and a function that returns how much of it has been read.
	open func(t testing.TB) (body io.Reader, read func() int)
}

// tempFile returns a file that contains content after a few bytes that have been read.
func tempFile(t testing.TB) *os.File {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(append([]byte("read"), content...))
	require.NoError(t, err)
	_, err = f.Seek(4, io.SeekStart)
	require.NoError(t, err)
	return f
}

// position returns a function that returns how much has been read of s, from where it is
// now.
func position(t testing.TB, s io.Seeker) func() int {
	at := func() int {
		n, err := s.Seek(0, io.SeekCurrent)
		assert.NoError(t, err)
		return int(n)
	}
	began := at()
	return func() int { return at() - began }
}

// lenReader is a reader that knows how much is left.
type lenReader interface {
	io.Reader
	Len() int
}

// wrapped opens what wrap makes of a reader of content.
func wrapped(reader func() lenReader, wrap func(io.Reader) io.Reader) func(testing.TB) (io.Reader, func() int) {
	return func(testing.TB) (io.Reader, func() int) {
		r := reader()
		return wrap(r), func() int { return len(content) - r.Len() }
	}
}

func bytesReader() lenReader { return bytes.NewReader(content) }

func asItIs(r io.Reader) io.Reader { return r }

var allKept = []kept{
	{name: "file without its Close", open: func(t testing.TB) (io.Reader, func() int) {
		f := tempFile(t)
		return io.NopCloser(f), position(t, f)
	}},
	{name: "section", open: func(t testing.TB) (io.Reader, func() int) {
		s := io.NewSectionReader(strings.NewReader("--"+string(content)+"--"), 2, int64(len(content)))
		return s, position(t, s)
	}},
	{name: "section of a file, partly read", open: func(t testing.TB) (io.Reader, func() int) {
		s := io.NewSectionReader(tempFile(t), 1, int64(len(content)+3))
		_, err := s.Seek(3, io.SeekStart)
		require.NoError(t, err)
		return io.NopCloser(s), position(t, s)
	}},
	{name: "section with a Close of its own", stream: true, open: func(t testing.TB) (io.Reader, func() int) {
		s := io.NewSectionReader(bytes.NewReader(content), 0, int64(len(content)))
		return &play.SendBody{Reader: s}, position(t, s)
	}},
	{name: "buffer", copied: true, open: wrapped(func() lenReader { return bytes.NewBuffer(bytes.Clone(content)) }, asItIs)},
	{name: "bytes", copied: true, open: wrapped(bytesReader, asItIs)},
	{name: "string", copied: true, open: wrapped(func() lenReader { return strings.NewReader(string(content)) }, asItIs)},
	{name: "bytes without GetBody", stream: true, open: wrapped(bytesReader, func(r io.Reader) io.Reader { return io.NopCloser(r) })},
	{name: "stream", stream: true, open: wrapped(bytesReader, func(r io.Reader) io.Reader { return play.OnlyReader{Reader: r} })},
}

// RoundTrip leaves a file or section where the last attempt has read to, however that ended.
//
//retrip:promise P7
func TestPosition_Attempts(t *testing.T) {
	type use struct {
		read int // bytes
		then play.Step
	}
	all := len(content)
	busy, ok, lost, refused := play.Reply(503), play.Reply(200), play.Err(resetError), play.Err(dialError)
	panics := func(*http.Request) (*http.Response, error) { panic("base") }
	for _, k := range allKept {
		if k.stream || k.copied {
			continue
		}
		for i, uses := range [][]use{
			{{all, ok}}, {{70_000, ok}}, {{0, play.Reply(413)}}, {{1000, busy}}, {{0, busy}}, {{all, play.Err(errors.New("unknown"))}},
			{{all, busy}, {all, ok}}, {{1000, busy}, {all, ok}}, {{0, busy}, {all, ok}}, {{all, busy}, {all, busy}, {1000, busy}, {70_000, ok}},
			{{all, busy}, {0, play.Reply(413)}}, {{1000, busy}, {all, busy}, {0, busy}, {0, play.Reply(413)}}, {{5000, lost}}, {{5000, lost}, {all, ok}},
			{{0, refused}}, {{0, refused}, {all, ok}}, {{0, refused}, {0, refused}, {70_000, ok}}, {{0, refused}, {5000, lost}, {all, ok}},
			{{all, busy}, {0, refused}}, {{1000, panics}}, {{all, busy}, {1000, panics}},
		} {
			for _, method := range []string{"PUT", "POST"} {
				play.Bubble(t, fmt.Sprint(k.name, "/", method, "/", i), func(t *testing.T) {
					base := play.Keep()
					for _, u := range uses {
						base.Steps = append(base.Steps, func(req *http.Request) (*http.Response, error) {
							defer req.Body.Close()
							assert.EqualValues(t, all, req.ContentLength)
							got := play.ReadAll(t, io.LimitReader(req.Body, int64(u.read)))
							assert.True(t, string(content[:u.read]) == got)
							return u.then(req)
						})
					}
					body, read := k.open(t)
					req := play.Request(t, method, body)
					req.ContentLength = int64(all)
					func() {
						defer func() { _ = recover() }()
						tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.MaxReplayBody = retrip.Off })}
						_ = testenv.Try(tr, req)
					}()
					assert.Equal(t, uses[min(base.Attempts(), len(uses))-1].read, read())
				})
			}
		}
	}
}

// serve answers a request in one of the ways of a server.
func serve(w http.ResponseWriter, r *http.Request, way string, leave func()) {
	if !strings.HasSuffix(way, "unread") {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil || n != int64(len(content)) {
			panic(fmt.Sprint("body of ", n, " bytes: ", err))
		}
	}
	switch way, _, _ = strings.Cut(way, ","); way {
	case "ok":
	case "busy":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "too large":
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	case "moved":
		if r.URL.Path != "/moved" {
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		}
	case "lost":
		panic(http.ErrAbortHandler)
	case "cancel":
		leave()
	}
}

// starter starts a server, and returns its address and a base for it.
type starter = func(http.HandlerFunc) (url string, base *http.Transport)

// atServer sends the body k to a server that answers requests in the given ways. It
// returns how much of the body has been read when the client has its answer.
func (k kept) atServer(t *testing.T, method string, ways []string, start starter, bare bool) (read int, result string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone := make(chan struct{})
	defer close(gone)
	leave := func() { cancel(); <-gone }
	var mu sync.Mutex
	seen := 0
	url, base := start(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		way := ways[min(seen, len(ways)-1)]
		seen++
		mu.Unlock()
		serve(w, r, way, leave)
	})
	base.ExpectContinueTimeout = time.Hour
	body, at := k.open(t)
	req := play.MustRequest(t, method, url, body).WithContext(ctx)
	if method == "PUT" {
		req.ContentLength = int64(len(content))
	}
	if strings.HasSuffix(ways[len(ways)-1], "unread") {
		// Only then is it certain that net/http doesn't read the body.
		req.Header.Set("Expect", "100-continue")
	}
	client := http.Client{Transport: base}
	if !bare {
		p := play.AtOnce
		p.MaxReplayBody, p.MaxAttempts = 1<<20, 2
		client.Transport = &retrip.Transport{Base: base, Policy: p}
	}
	resp, err := client.Do(req)
	read = at()
	if err != nil {
		return read, "an error"
	}
	play.Finish(t, resp)
	assert.Equal(t, read, at(), "nothing moves later")
	return read, resp.Status
}

// net/http leaves each body where retrip leaves it.
//
//retrip:promise P7
func TestPosition_AsNetHTTP(t *testing.T) {
	for _, k := range allKept {
		for _, ways := range [][]string{
			{"ok"}, {"busy"}, {"busy", "ok"}, {"too large"}, {"too large, unread"}, {"busy", "too large, unread"},
			{"lost"}, {"lost", "ok"}, {"cancel"}, {"cancel, unread"}, {"busy", "cancel"}, {"moved"},
		} {
			for _, method := range []string{"PUT", "POST"} {
				compare := func(t *testing.T, start starter) {
					got, result := k.atServer(t, method, ways, start, false)
					made := 1
					if method == "PUT" || k.copied && ways[0] == "moved" {
						made = len(ways)
					}
					want, bareResult := k.atServer(t, method, ways[made-1:made], start, true)
					assert.Equal(t, bareResult, result)
					if made > 1 && (k.stream || k.copied) {
						want = len(content) // the first attempt has read it all
					}
					assert.Equal(t, want, got)
				}
				name := fmt.Sprint(k.name, "/", method, "/", ways)
				protos := play.Protos
				if k.stream || k.copied {
					protos = []memhttp.Proto{memhttp.HTTP1, memhttp.HTTP2}
				}
				for _, proto := range protos {
					play.Bubble(t, fmt.Sprint(name, "/", proto), func(t *testing.T) {
						compare(t, func(h http.HandlerFunc) (string, *http.Transport) {
							s := memhttp.NewServer(t, proto, h)
							return s.URL, s.Transport()
						})
					})
				}
				if k.stream || k.copied {
					continue // over loopback, net/http sends only files in another way
				}
				t.Run(name+"/loopback", func(t *testing.T) {
					compare(t, func(h http.HandlerFunc) (string, *http.Transport) {
						s := httptest.NewServer(h)
						t.Cleanup(s.Close)
						return s.URL, s.Client().Transport.(*http.Transport)
					})
				})
			}
		}
	}
}

// What a base reads in an attempt that is over moves nothing. What it reads after
// RoundTrip has returned moves the position on, until it closes the body.
//
//retrip:promise P7
func TestPosition_LateReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var base *play.Script
		take := func(n int) {
			_, err := io.ReadFull(base.Reqs[base.Attempts()-1].Body, make([]byte, n))
			assert.NoError(t, err)
		}
		base = play.Keep(func(req *http.Request) (*http.Response, error) {
			take(5000)
			return play.Hang(req)
		}, func(req *http.Request) (*http.Response, error) {
			yieldsNothing(t, base.Reqs[0].Body)
			take(100)
			return play.Reply(200)(req)
		})
		f := tempFile(t)
		read := position(t, f)
		tr := &retrip.Transport{Base: base, Policy: play.With(func(p *retrip.Policy) { p.AttemptTimeout = time.Second })}
		resp, err := tr.RoundTrip(play.Request(t, "PUT", io.NopCloser(f)))
		require.NoError(t, err)
		assert.Equal(t, 100, read())
		take(50)
		assert.Equal(t, 150, read())
		require.NoError(t, base.Reqs[1].Body.Close())
		_, err = f.Seek(4, io.SeekStart)
		require.NoError(t, err)
		for _, req := range base.Reqs {
			yieldsNothing(t, req.Body)
		}
		play.Finish(t, resp)
		assert.Zero(t, read(), "the position is the caller's again")
	})
}
