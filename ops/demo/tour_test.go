// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The status page shows each outage within two seconds, with its own cause.
func TestTour(t *testing.T) {
	tour := newTour()
	defer tour.close()
	var causes []string
	require.NoError(t, tour.run(t.Context(), func(what, state string, after time.Duration) {
		assert.Less(t, after, 2*time.Second, what)
		_, cause, _ := strings.Cut(state, "last ")
		causes = append(causes, cause)
	}))
	assert.Equal(t, []string{
		"503, given up because of not_idempotent",
		"503, given up because of max_attempts",
		"503, given up because of max_attempts",
		"connection_refused, given up because of max_attempts",
		"503, given up because of fleet_budget",
		"503, given up because of retries_failing",
	}, causes)
}
