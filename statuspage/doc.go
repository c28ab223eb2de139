// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package statuspage serves the state of Transports, as a page for people and
// as JSON for programs. It shows the hosts at which requests failed in the last five
// minutes, and those in trouble, with their last failures and reasons, tokens,
// pauses, breakers and queues, and the policies in force:
//
//	mux.Handle("GET /debug/retrip", statuspage.Handler(map[string]*retrip.Transport{"payments": payments}))
//
// Importing the package registers nothing. The page is read-only and shows no
// URL, header value or body. But it names the hosts that a program calls, and
// shows how healthy they are. Serve it where you serve net/http/pprof: on a port
// of its own or behind authentication, never to the public. In the JSON, held says
// of a host that rules of retrip may hold back requests or retries.
//
// The page has a package of its own because html/template adds about 2 MB to a
// program.
package statuspage
