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

// GoogleStorage returns a client of Google Cloud Storage. The SDK would retry
// what is idempotent until the context ends, and for ever if it doesn't. Its
// credentials are tokens: under retrip each attempt has one that is valid.
// A resumable upload (of more than a chunk, 16 MiB) retries its chunks itself.
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
