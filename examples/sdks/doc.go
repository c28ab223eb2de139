// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package sdks makes clients of known services that retry by retrip, and not
// also by themselves: attempts would multiply. Each function shows two things,
// where the SDK takes a transport and how its own retries are turned off. The
// policies are what the services document. The tests run each client against a
// server that throttles as the service does.
//
// The SDKs that take minutes to build are in the module heavy, which make sdks
// tests.
package sdks
