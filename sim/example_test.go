// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/sim"
)

// policy is what a program would set in its Transport.
var policy = retrip.Policy{
	MaxAttempts:    4,
	AttemptTimeout: 300 * time.Millisecond,
	Backoff:        retrip.Backoff{Cap: time.Second},
}

// A test beside the policy of a program, for the size of its fleet.
func ExampleCheckRecovery_test() {
	_ = func(t *testing.T) { // func TestPolicyRecovers(t *testing.T) {
		scenario := sim.Overload()
		scenario.Policy.Retry = policy
		scenario.Fleet.Clients = 400
		if err := sim.CheckRecovery(t.Context(), scenario); err != nil {
			t.Fatal(err)
		}
	}
}

func ExampleCheckRecovery() {
	scenario := sim.Overload()
	scenario.Fleet.Clients = 400

	scenario.Policy.Retry = policy
	fmt.Println(sim.CheckRecovery(context.Background(), scenario))

	scenario.Policy.Retry.Budget = retrip.Budget{Size: 500}
	fmt.Println(sim.CheckRecovery(context.Background(), scenario))

	scenario.Policy.Retry.Budget = retrip.Unlimited
	fmt.Println(sim.CheckRecovery(context.Background(), scenario))
	// Output:
	// <nil>
}

func ExampleLargest() {
	scenario := sim.Overload()
	scenario.Fleet.Clients = 1000
	limit, err := sim.Largest(context.Background(), scenario, sim.OfBudgetSize, nil)
	fmt.Println(limit.Value, err)
	// Output:
}
