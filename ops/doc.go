// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package ops holds what operators of programs with retrip use: alerts.yml,
// alert rules for Prometheus; grafana-dashboard.json, and
// shed-dashboard.json for servers with a shed.Handler; and in alerts_test.yml
// the unit tests of the alerts, for promtool. There is no code in it but the
// tests, which hold these files, the README and the runbook against a real
// Prometheus that scrapes a program under load.
package ops
