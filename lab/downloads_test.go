// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"testing"

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
	for i, http2 := range []bool{false, true, true} {
		t.Run(fmt.Sprintf("%d HTTP2=%t", i, http2), func(t *testing.T) {
			d, err := RunDownload(t.Context(), size, 10<<20, http2)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, d.Cuts, size/(10<<20)-1)
			assert.LessOrEqual(t, d.Overhead(), 1.01)
			assert.InDelta(t, d.Cuts, d.Continued, 1, "a cut after the last byte doesn't break the body")
			t.Logf("%d cuts, %.4f × the bytes on the wire", d.Cuts, d.Overhead())
		})
	}
}
