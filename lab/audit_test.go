// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAudit(t *testing.T) {
	const told = answered | promised
	for name, c := range map[string]struct {
		notes      []note
		executions []uint8
		want       Audit
	}{
		"as told":                              {[]note{told, told | onlyOnce}, []uint8{1, 1}, Audit{}},
		"failed, executed or not":              {[]note{answered, answered | onlyOnce, answered}, []uint8{1, 1}, Audit{}},
		"repeatable, executed twice":           {[]note{told}, []uint8{2}, Audit{}},
		"no answer":                            {[]note{told, 0}, []uint8{1}, Audit{Unanswered: 1}},
		"lost":                                 {[]note{told, told | onlyOnce}, []uint8{0, 1}, Audit{Lost: 1}},
		"lost, beyond all that was executed":   {[]note{told, told}, []uint8{1}, Audit{Lost: 1}},
		"a duplicate":                          {[]note{told | onlyOnce}, []uint8{2}, Audit{Duplicates: 1}},
		"a duplicate of one that failed":       {[]note{answered | onlyOnce}, []uint8{3}, Audit{Duplicates: 1}},
		"nobody's":                             {[]note{told}, []uint8{1, 0, 1}, Audit{Unasked: 1}},
		"executed under the number of another": {[]note{told, told | onlyOnce}, []uint8{0, 2}, Audit{Lost: 1, Duplicates: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			got := audit(c.notes, c.executions)
			c.want.Begun = len(c.notes)
			assert.Equal(t, c.want, got)
		})
	}
}

// liar answers every seventh POST with 200 without sending it.
type liar struct {
	http.RoundTripper
	posts int
}

func (l *liar) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPost {
		if l.posts++; l.posts%7 == 0 {
			req.Body.Close()
			return &http.Response{StatusCode: http.StatusOK, Header: req.Header, Body: http.NoBody, Request: req}, nil
		}
	}
	return l.RoundTripper.RoundTrip(req)
}

// The audit detects a success that a caller was told but the server didn't
// execute. Without faults, all other requests agree.
func TestLoad_SeesLost(t *testing.T) {
	ledger := NewLedger(1, 0)
	server := Serve(HTTP1, ledger)
	defer server.Close()
	base := Base(HTTP1, server)
	defer base.CloseIdleConnections()
	false200 := &liar{RoundTripper: base}
	load := &Load{
		Client: &http.Client{Transport: false200}, URL: server.URL,
		Seed: 1, Callers: 1, Files: t.TempDir(),
	}
	_, err := load.Run(t.Context(), 300)
	require.NoError(t, err)
	require.Greater(t, false200.posts, 50)
	assert.Equal(t, Audit{Begun: 300, Lost: false200.posts / 7}, load.Audit(ledger.Executions()))
}

// A running timer holds a context; a stopped one doesn't.
func TestLoad_Held(t *testing.T) {
	load := &Load{}
	var cancels []context.CancelFunc
	for range 10 {
		_, cancel := context.WithTimeout(load.marked(), time.Minute)
		cancels = append(cancels, cancel)
	}
	assert.Equal(t, 10, load.Held(100*time.Millisecond))
	for _, cancel := range cancels {
		cancel()
	}
	clear(cancels)
	assert.Zero(t, load.Held(30*time.Second))
}
