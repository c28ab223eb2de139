// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/retrip/retrip"
)

// S3 returns a client of S3 in which the SDK retries and retrip does the rest:
// metrics, timeouts of attempts, the breaker. The SDK signs above the transport
// and knows errors that have no status of their own, so it is the better layer;
// it makes three attempts. Retries in both layers multiply, and with
// aws.NopRetryer those of retrip would all carry the signature of the first.
func S3(config aws.Config, base http.RoundTripper) *s3.Client {
	config.HTTPClient = &http.Client{Transport: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{MaxAttempts: 1},
	}}
	return s3.NewFromConfig(config)
}
