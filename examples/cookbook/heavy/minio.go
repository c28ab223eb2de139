// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/retrip/retrip"
)

// MinIO returns a client for the S3 service at endpoint, a host and port. The
// SDK signs above the transport: a retry carries the signature of the first
// attempt, which is valid for a quarter of an hour.
func MinIO(base http.RoundTripper, endpoint string, keys *credentials.Credentials) (*minio.Client, error) {
	return minio.New(endpoint, &minio.Options{
		Creds:      keys,
		Region:     "us-east-1",
		Transport:  &retrip.Transport{Base: base},
		MaxRetries: 1, // attempts; 0 would mean ten
	})
}
