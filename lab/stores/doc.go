// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package stores tests downloads from servers of large files: an object store
// with the API of S3, and a registry of container images. Their modules take
// minutes to build, so this module is not in go.work: run "make stores" in the
// root of the repository.
package stores
