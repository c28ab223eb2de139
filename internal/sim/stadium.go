// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Stadium models the live stream of a final: players that each fetch a segment
// every few seconds, a CDN that fails for an instant, and an origin that asks
// the requests it can't serve to come back later.
//
// A player whose request fails while the CDN fails learns of it at once. The
// policy then decides, with one additional rule: a player retries at most once
// per RetryEvery.
type Stadium struct {
	// Policy is the policy of the players; each player has its own host.
	// Stadium doesn't support the rules of other systems. AttemptTimeout and
	// Deadline have no effect: every request takes Flight.
	Policy Policy

	// Players is the number of players, 1 to 100 000 000.
	Players int

	// Interval is the time between two segments of a player. Each player starts
	// at a random time within the first interval.
	Interval time.Duration

	// Flight is how long a request takes.
	Flight time.Duration

	// At and For are when the CDN fails and for how long. Requests in flight at
	// the start fail at that moment; requests sent during the failure fail at
	// once.
	At, For time.Duration

	// Capacity is how many requests per second the origin serves, and Burst the
	// backlog it tolerates, as a duration. It refuses requests beyond that.
	Capacity float64
	Burst    time.Duration

	// RetryAfter is the Retry-After of a refusal, rounded to seconds as the
	// header requires. If 0, refusals have none.
	RetryAfter time.Duration

	// Refusal is the status of a refusal: 503 for an overloaded server, 429 for
	// a rate limit. If 0, 503.
	Refusal int

	// RetryEvery is the minimum time between two retries of one player.
	RetryEvery time.Duration

	// Horizon is the simulated time at which the run ends, at most an hour.
	Horizon time.Duration

	// Bin is the width of the intervals of [StadiumResult.Series]. If 0, 50 ms.
	Bin time.Duration

	// Seed chooses the random numbers.
	Seed uint64
}

// CupFinal returns a Stadium of 25 million players, a segment every 4 s, a
// failure of 100 ms, and an origin that serves 8 million requests per second.
func CupFinal() Stadium {
	return Stadium{
		Policy:     Policy{Retry: retrip.Policy{MaxAttempts: 2}},
		Players:    25_000_000,
		Interval:   4 * time.Second,
		Flight:     50 * time.Millisecond,
		At:         6 * time.Second,
		For:        100 * time.Millisecond,
		Capacity:   8_000_000,
		Burst:      10 * time.Millisecond,
		RetryAfter: 2 * time.Second,
		RetryEvery: 30 * time.Second,
		Horizon:    20 * time.Second,
		Seed:       1,
	}
}

// StadiumResult is the outcome of a [Stadium].
type StadiumResult struct {
	Policy  string
	Players int
	Seed    uint64
	Partial bool // the run was interrupted
	Until   time.Duration

	Fetches int64 // first attempts
	Failed  int64 // attempts that failed while the CDN failed
	Refused int64 // attempts that the origin refused
	Retries int64 // attempts after the first
	Lost    int64 // segments that never came

	PeakLoad    float64       // attempts per second in one Bin
	PeakRetries float64       // retries per second in one Bin
	PeakWaiting int64         // the most retries waiting at one time, including what a gate holds back
	Spread      time.Duration // the time span of the middle 90 % of the retries

	Bin    time.Duration
	Series []StadiumPoint
}

// StadiumPoint holds the counts of one interval of [StadiumResult.Series].
type StadiumPoint struct {
	Fetches, Retries, Failed, Refused int32
}

// Validate reports the first parameter that is out of bounds, as a
// *[ParameterError], or an invalid policy. Run validates too.
func (m Stadium) Validate() error {
	var c checker
	c.count("Players", m.Players, 1, 100_000_000)
	c.duration("Interval", m.Interval, time.Millisecond, time.Hour)
	c.duration("Flight", m.Flight, 0, time.Hour)
	c.duration("At", m.At, 0, time.Hour)
	c.duration("For", m.For, 0, time.Hour)
	c.number("Capacity", m.Capacity, 1, 1e9)
	c.duration("Burst", m.Burst, 0, time.Hour)
	c.duration("RetryAfter", m.RetryAfter, 0, time.Hour)
	c.want(m.Refusal == 0 || m.Refusal == http.StatusServiceUnavailable || m.Refusal == http.StatusTooManyRequests, "Refusal", m.Refusal, "503 or 429")
	c.duration("RetryEvery", m.RetryEvery, 0, time.Hour)
	c.duration("Horizon", m.Horizon, time.Millisecond, time.Hour)
	c.want(m.At+m.For <= m.Horizon, "At", m.At, "such that At + For is within the horizon, "+m.Horizon.String())
	c.duration("Bin", m.Bin, 0, time.Hour)
	c.want(m.Bin == 0 || m.Horizon/m.Bin <= 1_000_000, "Bin", m.Bin, "at least a millionth of the horizon, "+m.Horizon.String())
	c.ours(m.Policy)
	if c.err != nil {
		return c.err
	}
	_, _, err := m.Policy.rules()
	return err
}
