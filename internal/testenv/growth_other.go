// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package testenv

import "time"

var began = time.Now()

// threadTime is all the time that has passed, because no portable call tells them apart.
func threadTime() time.Duration { return time.Since(began) }
