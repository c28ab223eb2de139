// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

type ruleFile struct {
	Groups []struct {
		Name  string
		Rules []map[string]any
	}
}

// durations matches every PromQL duration, in any unit.
var durations = regexp.MustCompile(`\b(\d+)(ms|[smhdwy])\b`)

// longer returns text with all durations multiplied by n, in milliseconds.
func longer(t *testing.T, text string, n time.Duration) string {
	t.Helper()
	return durations.ReplaceAllStringFunc(text, func(d string) string {
		part := durations.FindStringSubmatch(d)
		count, err := strconv.Atoi(part[1])
		require.NoError(t, err)
		unit := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[part[2]]
		require.NotZero(t, unit, d)
		return fmt.Sprint((n * time.Duration(count) * unit).Milliseconds(), "ms")
	})
}

// The demo's rules are the production rules with each window divided by scale,
// and nothing else changed.
func TestScaledRulesAreTheAlerts(t *testing.T) {
	text, err := os.ReadFile("../alerts.yml")
	require.NoError(t, err)
	short, err := scaled(string(text))
	require.NoError(t, err)
	var alerts, demo ruleFile
	require.NoError(t, yaml.Unmarshal(text, &alerts))
	require.NoError(t, yaml.Unmarshal([]byte(short), &demo))
	require.NotEmpty(t, alerts.Groups[0].Rules)
	windows := 0
	for i, group := range alerts.Groups {
		for j, rule := range group.Rules {
			expr := rule["expr"].(string)
			windows += len(durations.FindAllString(expr, -1))
			rule["expr"] = longer(t, expr, 1)
			scaledRule := demo.Groups[i].Rules[j]
			scaledRule["expr"] = longer(t, scaledRule["expr"].(string), scale)
			if wait, ok := rule["for"].(string); ok {
				rule["for"] = longer(t, wait, 1)
				scaledRule["for"] = longer(t, scaledRule["for"].(string), scale)
			}
		}
	}
	assert.Equal(t, alerts, demo)
	assert.Greater(t, windows, 20)
	assert.NotContains(t, short, "[1h]")

	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("there is no promtool here")
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	require.NoError(t, os.WriteFile(file, []byte(short), 0o600))
	out, err := exec.Command(promtool, "check", "rules", file).CombinedOutput()
	assert.NoError(t, err, "%s", out)
}

func TestScaledRefusesWhatIsTooShort(t *testing.T) {
	_, err := scaled("expr: rate(x[0s])")
	assert.ErrorContains(t, err, "too short")
}
