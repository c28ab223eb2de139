// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package decide

// Reason is the one cause of a retry or of a give-up. Package retrip exports each as
// the word that String returns, and describes it.
type Reason uint8

const (
	None Reason = iota

	// Reasons for a retry.
	ServerError
	Throttled
	Status
	Pending
	Timeout
	Error

	// Reasons for a give-up. HiddenSends is both.
	MaxAttempts
	NotIdempotent
	BodyNotReplayable
	RetryForbidden
	WaitTooLong
	HostPaused
	Deadline
	BreakerOpen
	BudgetExhausted
	RetriesFailing
	FleetBudget
	HiddenSends
	Canceled

	Reasons // the number of reasons
)

var words = [Reasons]string{
	ServerError: "server_error", Throttled: "throttled", Status: "status", Pending: "pending", Timeout: "timeout", Error: "error",
	MaxAttempts: "max_attempts", NotIdempotent: "not_idempotent", BodyNotReplayable: "body_not_replayable", RetryForbidden: "retry_forbidden",
	WaitTooLong: "wait_too_long", HostPaused: "host_paused", Deadline: "deadline", BreakerOpen: "breaker_open",
	BudgetExhausted: "budget_exhausted", RetriesFailing: "retries_failing", FleetBudget: "fleet_budget", HiddenSends: "hidden_sends", Canceled: "canceled",
}

// String returns the word for r, which is empty for None.
func (r Reason) String() string { return words[r] }

// Verdict is what somebody who knows better than the rules says about an outcome:
// the caller, or the server in words of its own.
type Verdict uint8

const (
	ByRule      Verdict = iota // the rules decide
	Retryable                  // a failure that a retry may fix
	Final                      // not to be retried, good or bad
	Unprocessed                // Retryable, and the server has not processed the request
	Throttle                   // Unprocessed, because of the rate of the requests
)
