// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build race

package sim

// underRace says that the race detector makes runs about ten times as slow.
const underRace = true
