// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package heavy contains the clients of package sdks whose SDKs take minutes to
// build. It is not part of the workspace; make heavy tests it.
package heavy
