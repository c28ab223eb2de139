// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Demo runs two outages in two minutes: a server that fails on cue, a fleet of
// clients with retrip, and a real Prometheus that scrapes them and evaluates
// lab/ops/alerts.yml with all windows 60 times shorter. It prints what happens,
// where to look, and which alerts fire. Everything listens on loopback only.
// `make demo` in the root of the repository runs it.
package main
