// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package statuspage serves what Transports know: the hosts in trouble with
// their tokens, pauses, breakers, queues and last reasons, and the policies in
// force. It is a page for people and JSON for programs:
//
//	mux.Handle("GET /debug/retrip", statuspage.Handler(map[string]*retrip.Transport{"payments": payments}))
//
// Importing the package registers nothing. The page changes nothing, and shows
// no URL, header value or body; but it names the hosts that a program calls, and
// how well. Serve it where you serve net/http/pprof: on a port of its own or
// behind authentication, never to the public.
//
// It is a package of its own since html/template makes a program about 2 MB
// larger.
package statuspage
