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

// The bar appears after a second, on a terminal, and erases itself at the end.
func TestBar(t *testing.T) {
	for _, tty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			b := newBar(&out, tty)
			b.set(0.1)
			time.Sleep(999 * time.Millisecond)
			b.set(0.2)
			assert.Empty(t, out.String(), "within a second")
			time.Sleep(time.Millisecond)
			b.set(0.3)
			time.Sleep(time.Second)
			b.set(0.4)
			if !tty {
				b.close()
				assert.Empty(t, out.String(), "no terminal")
				return
			}
			assert.Contains(t, out.String(), "simulating")
			assert.Contains(t, out.String(), "40%")
			b.close()
			assert.Regexp(t, `\r *\r$`, out.String(), "an empty line stays")
		})
	}
}
