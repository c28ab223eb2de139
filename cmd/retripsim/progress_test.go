// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Progress is shown after a second, on a terminal, and erased at the end.
func TestProgress(t *testing.T) {
	for _, tty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			p := newProgress(&out, tty)
			p.set(0.1)
			time.Sleep(999 * time.Millisecond)
			p.set(0.2)
			assert.Empty(t, out.String(), "within a second")
			time.Sleep(time.Millisecond)
			p.set(0.3)
			p.set(0.31)
			time.Sleep(100 * time.Millisecond)
			p.set(0.4)
			if !tty {
				p.clear()
				assert.Empty(t, out.String(), "no terminal")
				return
			}
			assert.Equal(t, "\rsimulating  30 %\rsimulating  40 %", out.String())
			p.clear()
			assert.Regexp(t, `\r {16}\r$`, out.String())
		})
	}
}
