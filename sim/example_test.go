// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"context"
	"fmt"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/sim"
)

// Put a test like this beside the policy of a program, with the size of its
// fleet:
//
//	func TestPolicyRecovers(t *testing.T) {
//		scenario := sim.Overload()
//		scenario.Policy.Retry = policy
//		scenario.Fleet.Clients = 100
//		if err := sim.CheckRecovery(t.Context(), scenario); err != nil {
//			t.Fatal(err)
//		}
//	}
func ExampleCheckRecovery() {
	policy := retrip.Policy{
		MaxAttempts:    4,
		AttemptTimeout: 300 * time.Millisecond,
		Backoff:        retrip.Backoff{Cap: time.Second},
	}
	scenario := sim.Overload()
	scenario.Policy.Retry = policy
	scenario.Fleet.Clients = 100
	fmt.Println(sim.CheckRecovery(context.Background(), scenario))

	// Someone has removed the budget because it got in the way.
	scenario.Policy.Retry.Budget = retrip.Off
	fmt.Println(sim.CheckRecovery(context.Background(), scenario))
	// Output:
	// <nil>
	// sim: 100 clients with 7 requests/s each, at 70 % load: after 10s in which work takes 3.3 × as long, this policy has still not recovered after 1m0s, and sends 2.8 × capacity; without retries it takes 3s; no fleet size recovers in time
}

func ExampleScenario_Run() {
	scenario := sim.Overload()
	base := scenario.Policy.Retry
	for _, name := range []string{"no-retries", "no-budget", "retrip"} {
		var err error
		if scenario.Policy, err = sim.Preset(name, base); err != nil {
			fmt.Println(err)
			return
		}
		result, err := scenario.Run(context.Background(), nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		recovery := result.Recovery.String()
		if result.Recovery == sim.Never {
			recovery = "never"
		}
		fmt.Printf("%-10s  %4.0f attempts/s at its peak, recovery: %s\n", name, result.Peak, recovery)
	}
	// Output:
	// no-retries   770 attempts/s at its peak, recovery: 3s
	// no-budget   3512 attempts/s at its peak, recovery: never
	// retrip      1008 attempts/s at its peak, recovery: 3s
}

func ExampleLargest() {
	scenario := sim.Overload()
	limit, err := sim.Largest(context.Background(), scenario, sim.OfClients, nil)
	fmt.Println(limit.Value, err)
	// Output: 4011 <nil>
}
