// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/retrip/retrip"
)

// S3 returns a client for S3. The SDK retries, and retrip does the rest, such as
// metrics. AttemptTimeout would bound uploads, too: give base a
// ResponseHeaderTimeout. The SDK makes three attempts. It
// is the better layer, because it signs above the transport and knows errors
// that have no status of their own. Retries in both layers would multiply. With
// aws.NopRetryer, all of retrip's attempts would carry the signature of the
// first.
func S3(config aws.Config, base http.RoundTripper) *s3.Client {
	config.HTTPClient = &http.Client{Transport: &retrip.Transport{
		Base:   base,
		Policy: retrip.Policy{MaxAttempts: 1},
	}}
	return s3.NewFromConfig(config)
}
