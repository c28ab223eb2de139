// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package ops contains files for operators of programs with retrip: alerts.yml,
// alert rules for Prometheus; alerts_test.yml and alerts_days_test.yml, the unit
// tests of the alerts, for promtool; grafana-dashboard.json; and shed-dashboard.json for servers
// with a shed.Handler. Tests check these files and the runbook against a real
// Prometheus that scrapes a program under load.
package ops
