// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package retrip

import "net/http"

// Gate makes all requests to a host that has refused one wait in one queue, first
// come, first served. The gate closes for the time that the server names, with a
// 429 or with a 503 that has Retry-After; then a single request goes as a probe. If
// more than an eighth of the requests are refused, or the pauses are long, the others
// follow at a pace that the gate learns, while the pace helps. Until then, a 429 that
// names no time holds back only its own request. A request fails at once if it would
// miss its deadline or if the server asks for a wait longer than Policy.MaxWait. A
// gate is for a host that limits the rate of one process, or of a few.
//
// The zero Gate is off. Fields that are 0 or nil inherit, as in [Policy].
type Gate struct {
	// Enabled switches the gate on or off.
	Enabled Switch `json:"enabled"`

	// Key names the gate at which a request waits, for servers that limit each
	// tenant or API key: a refusal of one name holds back no other. An empty name,
	// or a nil Key, means the host's own gate, which names share that are refused
	// while 4096 others have gates. Names appear in no metric, log record or
	// HostState. Key must return the same name for the same request, be safe for
	// concurrent use, and not read the request's body.
	Key func(*http.Request) string `json:"-"`
}
