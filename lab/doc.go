// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package lab tests a Transport with real sockets and real faults: a server
// that keeps a ledger of the requests it has executed, Shopify's toxiproxy in
// front of it, and callers of all kinds behind both. Its tests compare the ledger
// with what the callers were told.
//
// It is not part of retrip's API.
package lab
