// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import "os"

// brief selects the most telling rows of long tables. The full tables take
// minutes; `make tables` runs them, as CI does, without the race detector,
// which makes them about ten times as slow and finds nothing in runs of one
// goroutine each.
var brief = underRace || os.Getenv("RETRIP_TABLES") == ""
