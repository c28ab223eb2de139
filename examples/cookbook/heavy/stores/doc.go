// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package stores tests downloads from servers of large files: an object store
// with the API of S3, and a registry of container images. make heavy runs it.
package stores
