// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
	"github.com/retrip/retrip/shed"
)

// trickle is an upload that pauses before each piece.
type trickle struct {
	left  int
	pause time.Duration
}

func (s *trickle) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	<-time.After(s.pause)
	n := min(len(p), s.left, 4<<10)
	s.left -= n
	return n, nil
}

// refuser is a server that refuses everything.
func refuser(t *testing.T, proto Proto) (http.RoundTripper, string) {
	s := Serve(proto, &shed.Handler{Limit: 1, DeadlineHeader: "Timeout-Ms"})
	t.Cleanup(s.Close)
	base := Base(proto, s)
	base.ExpectContinueTimeout = time.Second
	return base, s.URL
}

// Over TCP, the refusal of a slow upload comes before the first piece of it.
func TestShed_RefusesSlowUploads(t *testing.T) {
	t.Parallel()
	const pause = 100 * time.Millisecond
	for _, proto := range Protos {
		base, url := refuser(t, proto)
		for _, size := range []int{1 << 10, 200 << 10, 3 << 20} {
			for _, known := range []bool{true, false} {
				for _, expect := range []string{"", "100-continue"} {
					t.Run(fmt.Sprint(proto, size, known, expect), func(t *testing.T) {
						var fastest time.Duration
						for i := range 3 { // other programs may delay some of the requests
							req := play.MustRequest(t, http.MethodPost, url, &trickle{size, pause})
							if known {
								req.ContentLength = int64(size)
							}
							if expect != "" {
								req.Header.Set("Expect", expect)
							}
							req.Header.Set("Timeout-Ms", "0")
							start := time.Now()
							resp := testenv.Do(t, base, req)
							text, err := io.ReadAll(resp.Body)
							require.NoError(t, err)
							if took := time.Since(start); i == 0 || took < fastest {
								fastest = took
							}
							resp.Body.Close() // waits for a Read of the upload
							assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
							assert.Equal(t, "overloaded\n", string(text))
						}
						t.Log(fastest)
						assert.Less(t, fastest, pause/2)
					})
				}
			}
		}
	}
}

// Over TCP, a client that sends everything before it reads gets the refusal.
func TestShed_RefusalSurvivesTheUpload(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pieces int
		pause  time.Duration
	}{{1, 0}, {500, 0}, {60, 25 * time.Millisecond}} {
		for _, chunked := range []bool{true, false} {
			t.Run(fmt.Sprint(tt, chunked), func(t *testing.T) {
				t.Parallel()
				_, url := refuser(t, HTTP1)
				conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
				require.NoError(t, err)
				defer conn.Close()
				piece, end := strings.Repeat("x", 32<<10), ""
				framing := fmt.Sprint("Content-Length: ", tt.pieces*len(piece))
				if chunked {
					framing, piece, end = "Transfer-Encoding: chunked", fmt.Sprintf("%x\r\n%s\r\n", len(piece), piece), "0\r\n\r\n"
				}
				_, err = fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: a\r\nTimeout-Ms: 0\r\n%s\r\n\r\n", framing)
				require.NoError(t, err)
				for range tt.pieces {
					<-time.After(tt.pause)
					_, err = io.WriteString(conn, piece)
					require.NoError(t, err)
				}
				_, err = io.WriteString(conn, end)
				require.NoError(t, err)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				require.NoError(t, err)
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				assert.Equal(t, "503 overloaded\n", fmt.Sprintln(resp.StatusCode, strings.TrimSpace(string(text))))
			})
		}
	}
}

// curl asks for a 100 before a large upload, and sees the refusal instead.
func TestShed_RefusesCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	_, url := refuser(t, HTTP1)
	for _, limit := range []string{"100k", "1000M"} {
		for _, expect := range []string{"Expect: 100-continue", "Expect:"} {
			cmd := exec.CommandContext(t.Context(), curl, "-sS", "--limit-rate", limit, "-H", "Timeout-Ms: 0", "-H", expect,
				"--data-binary", "@-", "-w", "%{http_code}", url)
			cmd.Stdin = strings.NewReader(strings.Repeat("x", 4<<20))
			start := time.Now()
			out, err := cmd.CombinedOutput()
			assert.NoError(t, err, "%s", out)
			assert.Equal(t, "overloaded\n503", string(out))
			assert.Less(t, time.Since(start), 20*time.Second, "at 100k, the upload takes 40 s")
		}
	}
}
