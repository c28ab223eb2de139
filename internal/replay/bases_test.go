// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package replay_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// callers is a body of the caller's. Its words are texts that a Read yields, how long
// a Read waits before it goes on, and "!", where it fails.
type callers struct {
	t      *testing.T
	words  []string
	lock   chan struct{} // full during a Read
	wakes  bool          // Close ends a Read, as that of a pipe
	waits  bool          // Close waits for a Read, as that of the body of a server's request
	gone   chan struct{} // closed by a Close that wakes
	closed atomic.Int32
	yields int  // bytes so far
	ended  bool // nobody may read on
}

func (b *callers) Read(p []byte) (int, error) {
	select {
	case b.lock <- struct{}{}:
	default:
		b.t.Error("two read at once")
	}
	defer func() { <-b.lock }()
	for ; len(b.words) > 0; b.words = b.words[1:] {
		word := b.words[0]
		if word == "!" {
			return 0, play.ErrDisk
		}
		pause, err := time.ParseDuration(word)
		if err != nil {
			n := copy(p, word)
			if b.words[0] = word[n:]; n == len(word) {
				b.words = b.words[1:]
			}
			b.yields += n
			return n, nil
		}
		select {
		case <-b.gone:
			return 0, io.ErrClosedPipe
		case <-time.After(pause):
		}
	}
	assert.False(b.t, b.ended, "it is read beyond its end")
	b.ended = true
	return 0, io.EOF
}

func (b *callers) Close() error {
	if b.waits {
		b.lock <- struct{}{}
		defer func() { <-b.lock }()
	}
	if b.closed.Add(1) == 1 && b.wakes {
		close(b.gone)
	}
	return nil
}

// baseRow is a request, what its base does, and what comes of it.
type baseRow struct {
	name string
	body string // kinds, and the words of the body: of each copy, if there are several
	base string // what it does in each attempt, and how that ends: see game.act
	want string // the status, or a part of the error

	method string // PUT if empty
	length int64
	kept   int64
	cancel time.Duration // the caller goes after that; 0: never
	took   time.Duration // until RoundTrip returns, if there is a wait in the body
	reason retrip.Reason
	after  string // what the base does after its answer
	end    string // and when the response is over
}

// What bases do with bodies, and when. The caller's body is closed once, as soon as no
// attempt and no base needs it.
//
//retrip:promise P2 P5 P7 P10 P13
func TestBases(t *testing.T) {
	const pause, unfit = time.Second, retrip.ReasonBodyNotReplayable
	for _, row := range []baseRow{
		// A reader ends with its attempt.
		{name: "each attempt reads it", body: "stream/section: text",
			base: "empty rest:text close 503 | empty rest:text nothing close lost | empty rest:text close 200", want: "200", end: "1:nothing 2:nothing 3:nothing"},
		{name: "each attempt reads a copy", body: "copies: text",
			base: "rest:text close 503 | rest:text close lost | rest:text close 200", want: "200", end: "1:nothing 2:nothing"},
		{name: "closed with the last reader, not with an earlier one", body: "stream: text",
			base: "503 | 200", want: "200", after: "1:close closed:0 2:close closed:1 2:close closed:1"},
		{name: "closed for a base that panics", body: "stream/section: text", base: "panic", want: "panic", end: "1:nothing"},
		{name: "a late base gets nothing", body: "copies: text",
			base: "503 | 503 | 200", want: "200", after: "1:nothing 1:no-copy 1:close 2:nothing 2:no-copy 2:close 3:rest:text 3:close"},
		{name: "only what a base asks for is read", body: "stream: one two", base: "read:o yields:1 read:n yields:2 read:et yields:4 close 200", want: "200"},

		// HTTP/2 closes a body whose connection turned out to be unusable, and passes the same
		// body to another connection. It may not close it again.
		{name: "moved", body: "stream/section: text", base: "close rest:text close nothing 503 | 503 | 2:nothing rest:text close 200", want: "200"},
		{name: "moved, and not closed again", body: "stream/section: text", base: "close rest:text 200", want: "200"},
		{name: "moved after the answer", body: "stream/section: text", base: "close 200", want: "200", after: "rest:text"},
		{name: "closed, and nobody will send it", body: "stream/section: text", base: "close 200", want: "200", end: "1:nothing"},

		// A base that signs what it sends reads a copy first, and may leave that open.
		{name: "signs", body: "stream/section/copies: text", length: 4,
			base: "copy:text rest:text close 503 | copy-open:text rest:text close 503 | rest:text copy:text close 200", want: "200"},
		{name: "POST: sent once, so no copy", body: "stream/section: text", method: "POST", length: 4, base: "no-copy rest:text close 200", want: "200"},
		{name: "a copy that fits", body: "stream: text", length: 4, kept: 5, base: "rest:text copy:text close 200", want: "200"},
		{name: "a copy that might not be kept to its end", body: "stream: text", length: 4, kept: 4, base: "rest:text no-copy close 200", want: "200"},
		{name: "no length", body: "stream: text", base: "rest:text no-copy close 200", want: "200"},
		{name: "length -1", body: "stream: text", length: -1, base: "rest:text no-copy close 200", want: "200"},
		{name: "nothing kept", body: "stream: text", length: 4, kept: retrip.Off, base: "rest:text no-copy close 200", want: "200"},
		{name: "nothing kept, nothing read", body: "stream: text", kept: retrip.Off, base: "close 503 | 503 | rest:text close 200", want: "200"},

		// A Read of the last attempt is still in progress, when the next one begins.
		{name: "the next attempt gets what it read", body: "stream: one 1h two three",
			base: "read:one aside 503 | rest:onetwothree close 200", want: "200", took: time.Hour},
		{name: "it fails meanwhile", body: "stream: one 500ms !", base: "read:one aside 503 | fails:one close failed", want: "disk is gone", took: pause},
		{name: "the base closes late", body: "stream: 5s text", base: "leave:10ms 503 | rest:text close 200", want: "200", took: 5 * time.Second},
		{name: "Close wakes a Read that waits for its turn", body: "stream: one 1h two",
			base: "read:one aside 503 | read:one reading close left:1 lost | rest:onetwo close 200", want: "200", took: time.Hour},
		{name: "the caller goes", body: "stream: one 1h",
			base: "read:one aside 503", cancel: 500 * time.Millisecond, want: "canceled", reason: retrip.ReasonCanceled, took: 500 * time.Millisecond, after: "wait closed:1"},
		{name: "the caller goes, and Close waits for the Read", body: "stream, waits: one 1h",
			base: "read:one aside 503", cancel: 500 * time.Millisecond, want: "canceled", reason: retrip.ReasonCanceled, took: 500 * time.Millisecond, after: "wait closed:0"},
		{name: "beyond what is kept, the byte may be lost", body: "stream: text 1h more", kept: 4, base: "read:text reads-on 503", want: "503", reason: unfit},
		{name: "GetBody waits for it", body: "copies: one 40ms | two", base: "read:one aside 503 | rest:two close 200", want: "200", took: pause},
		{name: "GetBody waits for it, after an error", body: "copies: one 40ms | two", base: "read:one aside lost | rest:two close 200", want: "200"},
		{name: "Close ends it for GetBody", body: "copies, wakes: one 1h | two", base: "read:one aside 503 | rest:two close 200", want: "200", took: pause},
		{name: "Close ends it for GetBody, after an error", body: "copies, wakes: one 1h | two", base: "read:one aside lost | rest:two close 200", want: "200"},
		{name: "nothing ends it", body: "copies: one 1h | never", base: "read:one aside 503", want: "still in a Read", reason: unfit, took: 100 * time.Millisecond},
		{name: "nothing ends it, after an error", body: "copies: one 1h | never",
			base: "read:one aside lost", want: "still in a Read", reason: unfit, took: 100 * time.Millisecond},
		{name: "the caller goes while GetBody waits", body: "copies: one 1h | never",
			base: "read:one aside 503", cancel: 20 * time.Millisecond, want: "canceled", reason: retrip.ReasonCanceled, took: 20 * time.Millisecond},
		{name: "the caller goes while GetBody waits, after an error", body: "copies: one 1h | never",
			base: "read:one aside lost", cancel: 20 * time.Millisecond, want: "connection reset", reason: retrip.ReasonCanceled, took: 20 * time.Millisecond},

		// A server can't tell that a body without a length is cut.
		{name: "a copy that ends earlier", body: "copies: onetwo | one", base: "rest:onetwo close 503 | short:one close lost", want: "connection reset"},
		{name: "a copy that ends earlier than what was read", body: "copies: onetwo three | one", base: "read:onetwo close lost | short:one close lost", want: "connection reset"},
		{name: "a copy in memory, which ends earlier", body: "copies: onetwo | in memory", base: "read:onetwo close lost", want: "ends earlier", reason: unfit},

		// Whose fault it is.
		{name: "a Read that Close ends fails, which is no fault", body: "copies, wakes: 1h | two", base: "reading close lost | rest:two close 200", want: "200"},
		{name: "GetBody fails", body: "copies: one | none",
			base: "rest:one close lost", reason: unfit, want: "retrip: gave up after 1 attempt (body_not_replayable): the disk is gone; before that: read tcp: connection reset by peer"},
		{name: "GetBody fails for the base", body: "copies: one | none", base: "rest:one close no-copy failed", want: "the disk is gone"},
		{name: "GetBody fails, after the response had to be discarded", body: "copies: one | none", base: "503", reason: unfit, want: "the disk is gone"},
		{name: "GetBody fails, the body isn't needed", body: "copies: one | none", base: "rest:one close 503", reason: unfit, want: "503"},
		{name: "GetBody yields nothing", body: "copies: one | nil", base: "rest:one close 503", reason: unfit, want: "503"},
		{name: "a body for no attempt is closed", body: "copies: one | two",
			base: "rest:one close 503", cancel: 500 * time.Millisecond, want: "canceled", reason: retrip.ReasonCanceled},
	} {
		kinds, words, _ := strings.Cut(row.body, ": ")
		kinds, how, _ := strings.Cut(kinds, ", ")
		for kind := range strings.SplitSeq(kinds, "/") {
			for _, timeout := range []time.Duration{0, 24 * time.Hour} {
				play.Bubble(t, fmt.Sprintf("%s/%s/%v", row.name, kind, timeout), func(t *testing.T) {
					g := &game{t: t, row: row, how: how, timeout: timeout}
					g.run(kind, strings.Split(words, " | "))
				})
			}
		}
	}
}

// game is a row that is played.
type game struct {
	t   *testing.T
	row baseRow
	how string // of Close

	timeout time.Duration // of each attempt
	made    []*callers
	base    *play.Script
	aside   atomic.Int32 // Reads in goroutines of the base, in progress
}

// body returns the next of the caller's bodies.
func (g *game) body(scripts []string) *callers {
	words := strings.Fields(scripts[min(len(g.made), len(scripts)-1)])
	b := &callers{t: g.t, words: words, lock: make(chan struct{}, 1), gone: make(chan struct{}), wakes: g.how == "wakes", waits: g.how == "waits"}
	g.made = append(g.made, b)
	return b
}

func (g *game) request(kind string, scripts []string) *http.Request {
	method := "PUT"
	if g.row.method != "" {
		method = g.row.method
	}
	req := play.Request(g.t, method, nil)
	req.ContentLength = g.row.length
	switch kind {
	case "section":
		req.Body = io.NopCloser(io.NewSectionReader(strings.NewReader(scripts[0]), 0, int64(len(scripts[0]))))
	case "copies":
		req.GetBody = func() (io.ReadCloser, error) {
			b := g.body(scripts)
			switch b.words[0] {
			case "none", "nil":
				b.closed.Add(1)
				for _, response := range g.base.Bodies { // discarded, if the base may still need the body
					assert.Equal(g.t, g.row.want != "503", response.Closed.Load() > 0)
				}
				if b.words[0] == "nil" {
					return nil, nil
				}
				return nil, play.ErrDisk
			case "in":
				b.closed.Add(1)
				return io.NopCloser(strings.NewReader("short")), nil
			case "never":
				g.t.Error("GetBody is asked for a body")
			}
			return b, nil
		}
		fallthrough
	default:
		req.Body = g.body(scripts)
	}
	return req
}

func (g *game) run(kind string, scripts []string) {
	t := g.t
	g.base = play.Keep()
	attempts := strings.Split(g.row.base, " | ")
	for _, deeds := range attempts {
		g.base.Steps = append(g.base.Steps, func(r *http.Request) (*http.Response, error) {
			words := strings.Fields(deeds)
			for _, deed := range words[:len(words)-1] {
				g.act(deed)
			}
			return g.answer(r, words[len(words)-1])
		})
	}
	var done retrip.Event
	p := play.With(func(p *retrip.Policy) {
		p.MaxReplayBody, p.AttemptTimeout = g.row.kept, g.timeout
		if g.timeout > 0 {
			p.WholeBody = 1000
		}
	})
	tr := &retrip.Transport{Base: g.base, Policy: p, Trace: &retrip.Trace{Done: func(e retrip.Event) { done = e }}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if g.row.cancel > 0 {
		time.AfterFunc(g.row.cancel, cancel)
	}
	req, began := g.request(kind, scripts).WithContext(ctx), time.Now()
	resp, err := g.roundTrip(tr, req)
	if g.row.took > 0 {
		assert.Equal(t, g.row.took, time.Since(began))
	}
	assert.Equal(t, g.row.reason, done.Reason)
	if err == nil {
		assert.Equal(t, g.row.want, strconv.Itoa(resp.StatusCode))
		assert.Equal(t, kind == "copies" && g.row.reason != "", done.Err != nil, "the hook learns why there is no body")
	} else {
		assert.ErrorContains(t, err, g.row.want)
		if g.row.reason != "" {
			e := play.AsError(t, err)
			assert.Equal(t, strings.HasSuffix(attempts[0], "503"), e.StatusCode == 503, "the caller learns the status")
		}
	}
	g.acts(g.row.after)
	if resp != nil {
		play.Finish(t, resp)
	}
	g.acts(g.row.end)
	time.Sleep(2 * time.Hour)
	synctest.Wait()
	assert.Zero(t, g.aside.Load())
	assert.Len(t, g.base.Reqs, len(attempts))
	for i, b := range g.made {
		assert.EqualValues(t, 1, b.closed.Load(), "Closes of body %d", i)
	}
}

// roundTrip makes a panic of the base an error.
func (g *game) roundTrip(tr *retrip.Transport, req *http.Request) (_ *http.Response, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return tr.RoundTrip(req)
}

func (g *game) answer(r *http.Request, word string) (*http.Response, error) {
	switch word {
	case "lost":
		return nil, resetError
	case "failed":
		return nil, play.ErrDisk
	case "panic":
		panic("base")
	}
	return play.Reply(play.Must(strconv.Atoi(word)))(r)
}

func (g *game) acts(deeds string) {
	for deed := range strings.FieldsSeq(deeds) {
		g.act(deed)
	}
}

// act makes the base use the body of its last request, or of the one whose number comes first.
func (g *game) act(deed string) {
	t, r := g.t, g.base.Reqs[len(g.base.Reqs)-1]
	if n, rest, _ := strings.Cut(deed, ":"); n == "1" || n == "2" || n == "3" {
		r, deed = g.base.Reqs[n[0]-'1'], rest
	}
	what, arg, _ := strings.Cut(deed, ":")
	switch what {
	case "read":
		got := make([]byte, len(arg))
		_, err := io.ReadFull(r.Body, got)
		assert.NoError(t, err)
		assert.Equal(t, arg, string(got))
	case "rest":
		assert.Equal(t, arg, play.ReadAll(t, r.Body))
	case "fails":
		got, err := io.ReadAll(r.Body)
		assert.Equal(t, arg, string(got))
		assert.ErrorIs(t, err, play.ErrDisk)
	case "short":
		got, err := io.ReadAll(r.Body)
		assert.Equal(t, arg, string(got))
		assert.ErrorContains(t, err, "ends earlier")
	case "empty":
		n, err := r.Body.Read(nil)
		assert.Zero(t, n)
		assert.NoError(t, err, "nothing was asked for")
	case "nothing":
		yieldsNothing(t, r.Body)
	case "close":
		assert.NoError(t, r.Body.Close())
	case "copy", "copy-open":
		b := play.Must(r.GetBody())
		assert.Equal(t, arg, play.ReadAll(t, b))
		if what == "copy" {
			assert.NoError(t, b.Close())
		}
	case "no-copy":
		if r.GetBody != nil {
			_, err := r.GetBody()
			assert.Error(t, err)
		}
	case "reading", "aside": // a goroutine of the base reads, and perhaps closes
		g.read(r.Body, what == "aside")
		synctest.Wait()
	case "reads-on":
		go func() { _, _ = io.Copy(io.Discard, r.Body); _ = r.Body.Close() }()
		synctest.Wait()
	case "leave":
		g.read(r.Body, false)
		time.AfterFunc(play.Must(time.ParseDuration(arg)), func() { _ = r.Body.Close() })
		time.Sleep(time.Millisecond)
	case "wait":
		synctest.Wait()
	case "left": // Reads in goroutines
		synctest.Wait()
		assert.EqualValues(t, play.Must(strconv.Atoi(arg)), g.aside.Load())
	case "closed":
		assert.EqualValues(t, play.Must(strconv.Atoi(arg)), g.made[0].closed.Load())
	case "yields":
		assert.Equal(t, play.Must(strconv.Atoi(arg)), g.made[0].yields)
	default:
		t.Error("unknown: " + deed)
	}
}

// read reads b in a goroutine. Its attempt is over before the Read is, so it yields nothing.
func (g *game) read(b io.ReadCloser, closes bool) {
	g.aside.Add(1)
	go func() {
		defer g.aside.Add(-1)
		n, err := b.Read(make([]byte, 10))
		assert.Zero(g.t, n)
		assert.Error(g.t, err)
		if closes {
			_ = b.Close()
		}
	}()
}
