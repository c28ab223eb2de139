// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/decide"
)

// Package decide knows none of the exported types. Its reasons, verdicts and jitters
// are the exported ones all the same.
func TestReason_LikeDecide(t *testing.T) {
	var words []Reason
	for r := decide.None + 1; r < decide.Reasons; r++ {
		words = append(words, wordOf(r))
	}
	all := slices.Concat(retryReasons, giveUpReasons)
	slices.Sort(all)
	slices.Sort(words)
	assert.Equal(t, slices.Compact(all), words)
	assert.Equal(t, []Verdict{ByRule, Retryable, Final, Unprocessed},
		[]Verdict{Verdict(decide.ByRule), Verdict(decide.Retryable), Verdict(decide.Final), Verdict(decide.Unprocessed)})
	assert.Equal(t, []Jitter{FullJitter, EqualJitter, DecorrelatedJitter, NoJitter},
		[]Jitter{Jitter(backoff.Full), Jitter(backoff.Equal), Jitter(backoff.Decorrelated), Jitter(backoff.None)})
}
