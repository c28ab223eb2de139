// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"context"
	"net/http"

	"cloud.google.com/go/storage"
	"golang.org/x/oauth2"
	"google.golang.org/api/option"

	"github.com/retrip/retrip"
)

// GoogleStorage returns a client for Google Cloud Storage. By itself the SDK
// retries idempotent calls until the context ends, or forever if it doesn't
// end. Its credentials are tokens: below retrip, each attempt gets a valid one.
// A resumable upload (of more than one chunk, 16 MiB) retries its chunks
// itself.
func GoogleStorage(ctx context.Context, base http.RoundTripper, tokens oauth2.TokenSource, options ...option.ClientOption) (*storage.Client, error) {
	client, err := storage.NewClient(ctx, append(options, option.WithHTTPClient(&http.Client{Transport: &retrip.Transport{
		Base:   &oauth2.Transport{Base: base, Source: tokens},
		Policy: retrip.Policy{RetryOn: []int{http.StatusRequestTimeout}},
	}}))...)
	if err != nil {
		return nil, err
	}
	client.SetRetry(storage.WithPolicy(storage.RetryNever))
	return client, nil
}
