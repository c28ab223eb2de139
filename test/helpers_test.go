// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// These tests show what a caller of package retrip and a server see, through the
// exported API alone. What the root package decides by itself is tested beside it.

package retrip_test

import (
	"testing"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/play"
	"github.com/retrip/retrip/internal/testenv"
)

func TestMain(m *testing.M) { testenv.RareGC(m) }

var (
	bubble  = testenv.Bubble
	do      = testenv.Do
	drop    = testenv.Drop
	try     = testenv.Try
	counted = play.Counted
	gather  = play.Gather
)

// continued is the result of a broken body whose rest has come.
const continued retrip.Reason = "continued"

// resumes returns how many broken bodies had the given result.
func resumes(t *testing.T, m *retrip.Metrics, result retrip.Reason) int {
	t.Helper()
	return int(gather(t, m)["default"]["body_resumes_total "+string(result)])
}
