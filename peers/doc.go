// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package peers backs docs/migrating.md: each of its tests shows how other
// retry libraries behave, in the configuration their own documentation
// begins with, and how retrip does in the same place.
package peers
