// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

// content is what kept bodies hold: more than Policy.MaxReplayBody, and than net/http
// reads at once.
var content = play.Pattern(200_000)

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

// allKept are request bodies that their caller keeps. Each comes with a function that
// returns how much of it has been read.
var allKept = map[string]func(t testing.TB) (body io.Reader, read func() int){
	"file without its Close": func(t testing.TB) (io.Reader, func() int) {
		f := tempFile(t)
		return io.NopCloser(f), position(t, f)
	},
	"section": func(t testing.TB) (io.Reader, func() int) {
		s := io.NewSectionReader(strings.NewReader("--"+string(content)+"--"), 2, int64(len(content)))
		return s, position(t, s)
	},
	"section of a file, partly read": func(t testing.TB) (io.Reader, func() int) {
		s := io.NewSectionReader(tempFile(t), 1, int64(len(content)+3))
		_, err := s.Seek(3, io.SeekStart)
		require.NoError(t, err)
		return io.NopCloser(s), position(t, s)
	},
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
	for name, open := range allKept {
		for i, uses := range [][]use{
			{{all, ok}}, {{70_000, ok}}, {{0, play.Reply(413)}}, {{1000, busy}}, {{0, busy}}, {{all, play.Err(errors.New("unknown"))}},
			{{all, busy}, {all, ok}}, {{1000, busy}, {all, ok}}, {{0, busy}, {all, ok}}, {{all, busy}, {all, busy}, {1000, busy}, {70_000, ok}},
			{{all, busy}, {0, play.Reply(413)}}, {{1000, busy}, {all, busy}, {0, busy}, {0, play.Reply(413)}}, {{5000, lost}}, {{5000, lost}, {all, ok}},
			{{0, refused}}, {{0, refused}, {all, ok}}, {{0, refused}, {0, refused}, {70_000, ok}}, {{0, refused}, {5000, lost}, {all, ok}},
			{{all, busy}, {0, refused}}, {{1000, panics}}, {{all, busy}, {1000, panics}},
		} {
			for _, method := range []string{"PUT", "POST"} {
				play.Bubble(t, fmt.Sprint(name, "/", method, "/", i), func(t *testing.T) {
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
					body, read := open(t)
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
