// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip/sim"
)

// gateCell is the result of one policy in one case, with one seed.
type gateCell struct {
	Case   string
	Result *sim.RateLimitResult
}

// gate runs the cases that measure a gate.
func gate(f *flags) func(context.Context, func(float64)) (*report, error) {
	var only string
	seed := uint64(1)
	f.StringVar(&only, "only", "", "run only the cases whose names contain `text`")
	f.Uint64Var(&seed, "seed", seed, "seed of the random numbers")
	obeys := f.Bool("obeys", false, "clients also keep to every Retry-After for the whole host; for policies without a gate")
	f.noPicture = true
	f.choice("retrip")
	f.throttled()
	f.names["Policy"] = "policy"
	return func(ctx context.Context, progress func(float64)) (*report, error) {
		var cases []sim.RateLimitCase
		for _, c := range append(sim.RateLimits(), sim.Refusals()...) {
			if strings.Contains(c.Name, only) {
				cases = append(cases, c)
			}
		}
		if len(cases) == 0 {
			return nil, fmt.Errorf("-only is %q: no case name contains it", only)
		}
		r := &report{
			title: "the share of a rate limit that clients use, the refusals that this costs, and the longest wait",
			table: [][]string{{"case", "policy", "used", "refused", "worst wait", "× fair", "largest share", "failed", "accepted"}},
			notes: []string{"used: accepted attempts, as a share of the limit; refused: refusals per accepted attempt; fair: the longest wait relative to one in which all take turns at the full limit; failed: includes the warm-up, which the other figures leave out"},
		}
		var cells []gateCell
		for i, c := range cases {
			policies, err := f.load(c.Model.Policy.Retry)
			if err != nil {
				return nil, err
			}
			for j, p := range policies {
				c.Model.Policy, c.Model.Seed, c.Model.Obeys = p, seed, *obeys
				part := float64(i*len(policies) + j)
				all := float64(len(cases) * len(policies))
				result, err := c.Model.Run(ctx, func(done float64) { progress((part + done) / all) })
				if err != nil {
					if len(cells) == 0 {
						return nil, err
					}
					r.json = cells
					return r, err
				}
				progress((part + 1) / all)
				cells = append(cells, gateCell{c.Name, result})
				r.table = append(r.table, gateRow(c, result))
			}
		}
		r.json = cells
		r.csv = func(w io.Writer) error {
			out := csv.NewWriter(w)
			out.Write(strings.Split("case,policy,used,refused,worst seconds,fair seconds,share,failed,last seconds", ","))
			for _, c := range cells {
				out.Write([]string{c.Case, c.Result.Policy, number(c.Result.Used), number(c.Result.Refusals), number(c.Result.Worst.Seconds()),
					number(c.Result.Fair.Seconds()), number(c.Result.Share), strconv.FormatInt(c.Result.Failed, 10), number(c.Result.Last.Seconds())})
			}
			out.Flush()
			return out.Error()
		}
		return r, nil
	}
}

func gateRow(c sim.RateLimitCase, r *sim.RateLimitResult) []string {
	row := []string{c.Name, r.Policy, "", fmt.Sprintf("%.1f %%", 100*r.Refusals), r.Worst.Round(100 * time.Millisecond).String(), "", "", "", strconv.FormatInt(r.Accepted, 10)}
	if r.Used > 0 {
		row[2] = fmt.Sprintf("%.1f %%", 100*r.Used)
	}
	if r.Fair > 0 {
		row[5] = fmt.Sprintf("%.2f", r.Worst.Seconds()/r.Fair.Seconds())
	}
	if c.Model.Processes > 1 {
		row[6] = fmt.Sprintf("%.0f %%", 100*r.Share)
	}
	if r.Failed > 0 {
		row[7] = fmt.Sprintf("%d: %s", r.Failed, r.GaveUp[0].Reason)
	}
	return row
}
