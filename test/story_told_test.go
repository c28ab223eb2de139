// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip_test

import (
	"context"
	"log/slog"
	"maps"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
)

// say records what is told of a request, or of the host if who is empty.
func (s *stage) say(who, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if who != "" {
		what = who + " " + what
	}
	s.said[who] = append(s.said[who], what)
}

// listen collects what is told at each instant of the story, when nothing happens there any
// more: the metrics first, and then request by request, since the order between requests is
// nobody's.
func (s *stage) listen(tr *retrip.Transport) {
	meter := play.Meter{Metrics: tr.Metrics}
	meter.Changes(s.t)
	s.told = make([]string, len(s.Lines))
	for i, l := range s.Lines {
		if i+1 < len(s.Lines) && s.Lines[i+1].At == l.At {
			continue
		}
		time.Sleep(l.At - s.now())
		synctest.Wait()
		s.mu.Lock()
		told := []string{strings.Join(meter.Changes(s.t), " ")}
		for _, who := range slices.Sorted(maps.Keys(s.said)) {
			told = append(told, s.said[who]...)
		}
		clear(s.said)
		s.mu.Unlock()
		s.told[i] = strings.Join(slices.DeleteFunc(told, func(part string) bool { return part == "" }), "\n")
	}
	runtime.KeepAlive(tr) // the gauges are of Transports that are reachable
}

// checkTold compares what was told with what the story says, where it says something. If
// that differs, it prints the story with all that was told, to be copied from.
func (s *stage) checkTold() {
	var want, got []string
	var all strings.Builder
	for i, l := range s.Lines {
		all.WriteString("\n" + l.Text)
		indent := "\n" + strings.Repeat(" ", len(l.Text)-len(strings.TrimLeft(strings.TrimPrefix(l.Text, l.At.String()), " ")))
		for part := range strings.Lines(s.told[i]) {
			part = strings.TrimSpace(part)
			if line := all.String()[strings.LastIndex(all.String(), "\n")+1:]; line != l.Text && utf8.RuneCountInString(line+part) < 115 {
				all.WriteString(play.Between + part)
			} else {
				all.WriteString(indent + part)
			}
		}
		if len(l.Told) > 0 {
			want = append(want, tellAt(l.At, "%s", strings.Join(l.Told, "\n")))
			got = append(got, tellAt(l.At, "%s", s.told[i]))
		}
	}
	if !assert.Equal(s.t, want, got) {
		s.t.Log("all that was told:" + all.String())
	}
}

// Enabled, Handle, WithAttrs and WithGroup make the stage the handler of the log. Of a record
// it keeps the level, the message and the words; the other fields are told elsewhere.

func (s *stage) Enabled(context.Context, slog.Level) bool { return true }
func (s *stage) WithAttrs([]slog.Attr) slog.Handler       { return s }
func (s *stage) WithGroup(string) slog.Handler            { return s }

func (s *stage) Handle(_ context.Context, r slog.Record) error {
	who, what := "", strings.ToLower(r.Level.String())+" "+strings.TrimPrefix(r.Message, "retrip: ")
	r.Attrs(func(a slog.Attr) bool {
		switch value := a.Value.String(); a.Key {
		case "url":
			u, _ := url.Parse(value)
			who = nameIn(u.Path)
		case "reason", "change":
			what = strings.TrimSpace(what + " " + value)
		case "omitted":
			what += " omitted=" + value
		}
		return true
	})
	s.say(who, what)
	return nil
}
