// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab tests a Transport with real sockets and real faults: servers of other
// projects, and one that keeps a ledger of the requests that it has executed, behind a
// proxy that cuts connections.
//
// It is not part of retrip's API.
package lab
