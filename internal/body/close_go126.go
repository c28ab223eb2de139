// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !go1.27

package body

const closeDrains = false // see close_go127.go
