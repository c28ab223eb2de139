// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// query is a PromQL expression from a file that users read or import.
type query struct {
	name string // the file and the name it has there
	expr string
}

// allQueries returns every query of the alerts and the dashboard.
func allQueries(t *testing.T) []query {
	t.Helper()
	var all []query
	for _, rule := range alertRules(t) {
		all = append(all, query{"alert: " + rule.Alert, rule.Expr})
	}
	for _, panel := range readDashboard(t, "grafana").Panels {
		for _, target := range panel.Targets {
			expr := target.Expr
			for variable, value := range map[string]string{"$__rate_interval": "5m", "$job": ".*", "$policy": ".*"} {
				expr = strings.ReplaceAll(expr, variable, value)
			}
			require.NotContains(t, expr, "$", "a variable without a value in panel %s", panel.Title)
			all = append(all, query{fmt.Sprintf("panel: %s: %s", panel.Title, target.RefID), expr})
		}
	}
	return all
}

type alertRule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func alertRules(t *testing.T) []alertRule {
	t.Helper()
	data, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct{ Groups []struct{ Rules []alertRule } }
	require.NoError(t, yaml.Unmarshal(data, &file))
	var rules []alertRule
	for _, group := range file.Groups {
		rules = append(rules, group.Rules...)
	}
	require.NotEmpty(t, rules)
	return rules
}

type dashboard struct {
	Templating struct {
		List []struct{ Name, Definition string }
	}
	Panels []struct {
		ID      int
		Title   string
		Type    string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ RefID, Expr string }
	}
}

func readDashboard(t *testing.T, name string) dashboard {
	t.Helper()
	data, err := os.ReadFile(name + "-dashboard.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(data, &d))
	require.NotEmpty(t, d.Panels)
	return d
}
