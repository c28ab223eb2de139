// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/hostkey"
)

// An entry is complete as soon as it can be found. Readers of the table don't
// wait for the request that has made it.
func TestHostTable_MakesWhole(t *testing.T) {
	var table Table
	key := hostkey.Key{Host: "example.com", Port: "443"}
	e := table.PinNew(key, 7)
	assert.Same(t, e, table.PinNew(key, 8), "made once")
	assert.Equal(t, 2, e.pins)
	list, _ := table.All(0)
	for _, e := range list {
		assert.Equal(t, key, e.Key)
		assert.EqualValues(t, 7, e.Used)
	}
}
