// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The map of docs/retry-storms.md: length of the trigger × requests per second
// and client × load. Cells at both ends of each are simulated here; all of them
// by `make figures`.
//
//retrip:promise P14
func TestOverloadMap(t *testing.T) {
	if brief {
		t.Skip("the map has medians of 3 runs")
	}
	data, err := os.ReadFile("../docs/retry-storms.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| retrip \| (\d+) % \| ([0-9.]+) \| (\d+) s \((\d+) s\) \| (\d+) s \((\d+) s\) \|`).FindAllStringSubmatch(string(data), -1)
	require.Len(t, rows, 10)
	for _, row := range rows {
		var x [7]float64
		for i := 1; i < len(x); i++ {
			x[i], err = strconv.ParseFloat(row[i], 64)
			require.NoError(t, err)
		}
		if perClient := x[2]; perClient != 7 && perClient != 0.7 {
			continue
		}
		for i, length := range []time.Duration{time.Second, 10 * time.Second} {
			s := Overload().LoadOf(x[1] / 100)
			s.Fleet.Clients = int(s.Arrivals.Rate/x[2] + 0.5)
			s.Trigger.For = length
			ours, without := x[3+2*i], x[4+2*i]
			assert.InDelta(t, ours, median(t, s), 1+0.3*ours, "%v with %v requests/s per client at %v %%", length, x[2], x[1])
			assert.InDelta(t, without, median(t, as(t, s, "no-retries")), 1+0.3*without, "%v without retries at %v %%", length, x[1])
		}
	}
}
