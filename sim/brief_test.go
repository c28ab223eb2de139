// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "os"

// brief leaves only the most telling rows of long tables. All of them take
// minutes, and are run by `make tables`, as CI does: not under the race detector,
// which makes them about ten times as slow and finds nothing in runs of one
// goroutine each.
var brief = underRace || os.Getenv("RETRIP_TABLES") == ""
