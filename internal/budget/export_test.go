// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package budget

var Subject = subject
