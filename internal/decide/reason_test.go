// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/decide"
)

// Each reason has the word of the exported one of its name.
func TestReason_Words(t *testing.T) {
	want := [decide.Reasons]retrip.Reason{
		decide.ServerError: retrip.ReasonServerError, decide.Throttled: retrip.ReasonThrottled, decide.Status: retrip.ReasonStatus, decide.Pending: retrip.ReasonPending,
		decide.Timeout: retrip.ReasonTimeout, decide.Error: retrip.ReasonError,
		decide.MaxAttempts: retrip.ReasonMaxAttempts, decide.NotIdempotent: retrip.ReasonNotIdempotent, decide.BodyNotReplayable: retrip.ReasonBodyNotReplayable,
		decide.RetryForbidden: retrip.ReasonRetryForbidden, decide.WaitTooLong: retrip.ReasonWaitTooLong, decide.HostPaused: retrip.ReasonHostPaused,
		decide.Deadline: retrip.ReasonDeadline, decide.BreakerOpen: retrip.ReasonBreakerOpen, decide.BudgetExhausted: retrip.ReasonBudgetExhausted, decide.RetriesFailing: retrip.ReasonRetriesFailing,
		decide.FleetBudget: retrip.ReasonFleetBudget, decide.HiddenSends: retrip.ReasonHiddenSends, decide.Canceled: retrip.ReasonCanceled,
	}
	for r := range decide.Reasons {
		assert.EqualValues(t, want[r], r.String())
		assert.Equal(t, r == decide.None, r.String() == "")
	}
}
