// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"regexp"
	"strconv"
	"time"
)

// scale is the factor by which time is shorter in the demo than in production:
// an hour becomes a minute.
const scale = 60

// windows matches the durations in a rules file: ranges and offsets in expressions,
// and how long a condition must last before its alert fires.
var windows = regexp.MustCompile(`(\[| offset |\n +for: )(\d+)([smhd])(\]|\)|\n)`)

var units = map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// scaled returns rules with all windows divided by scale and nothing else
// changed.
func scaled(rules string) (string, error) {
	var failed error
	out := windows.ReplaceAllStringFunc(rules, func(window string) string {
		part := windows.FindStringSubmatch(window)
		n, err := strconv.Atoi(part[2])
		if err != nil {
			failed = err
		}
		shorter := time.Duration(n) * units[part[3]] / scale
		if shorter < time.Millisecond {
			failed = fmt.Errorf("a window of %s%s is too short for a demo", part[2], part[3])
		}
		return fmt.Sprintf("%s%dms%s", part[1], shorter.Milliseconds(), part[4])
	})
	return out, failed
}
