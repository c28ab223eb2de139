// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/shed"
)

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
				s := Serve(HTTP1, &shed.Handler{Limit: 1, DeadlineHeader: "Timeout-Ms"})
				t.Cleanup(s.Close)
				conn, err := net.Dial("tcp", s.Listener.Addr().String())
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
