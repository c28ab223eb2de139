// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Bodies that are cut repeatedly arrive whole, with hardly more bytes on the
// wire than in the body.
//
//retrip:promise P20
func TestDownloads(t *testing.T) {
	size := int64(256 << 20)
	if testing.Short() {
		size = 32 << 20
	}
	body := func() *io.SectionReader { return io.NewSectionReader(file{size}, 0, size) }
	want := sha256.New()
	_, err := io.Copy(want, body())
	require.NoError(t, err)
	for i, p := range []Proto{HTTP1, H2C, H2C} {
		t.Run(fmt.Sprintf("%d %s", i, p), func(t *testing.T) {
			server := Serve(p, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("ETag", `"1"`)
				w.Header().Set("Content-Type", "application/octet-stream")
				http.ServeContent(w, r, "", time.Time{}, body())
			}))
			defer server.Close()
			d, err := Fetch(t.Context(), server.Listener.Addr().String(), "/file", 10<<20, p)
			require.NoError(t, err)
			assert.Equal(t, size, d.Size)
			assert.Equal(t, want.Sum(nil), d.SHA256[:])
			assert.GreaterOrEqual(t, d.Cuts, size/(10<<20)-1)
			assert.LessOrEqual(t, d.Overhead(), 1.01)
			assert.InDelta(t, d.Cuts, d.Continued, 1, "a cut after the last byte doesn't break the body")
			t.Logf("%d cuts, %.4f × the bytes on the wire", d.Cuts, d.Overhead())
		})
	}
}
