// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build go1.27

package body

// closeDrains says that net/http, after a Close of an HTTP/1 response body, reads up to
// 256 KiB of the rest by itself, for up to 50 ms, and keeps the connection
// (https://go.dev/issue/77370). A Read that is in progress goes on for that time, and in a
// testing/synctest bubble for ever (https://go.dev/issue/81404).
const closeDrains = true
