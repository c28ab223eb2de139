// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/retrip/retrip"
)

// AzureOptions returns the options of an Azure client that retries through
// retrip. By itself the SDK makes three retries. It adds credentials above the
// transport. Tokens are valid for longer than any wait here. A shared key signs
// the time of the first attempt, and the signature is valid for a quarter of an
// hour.
func AzureOptions(base http.RoundTripper) azcore.ClientOptions {
	return azcore.ClientOptions{
		Retry: policy.RetryOptions{MaxRetries: -1}, // 0 would mean three
		Transport: &http.Client{Transport: &retrip.Transport{
			Base: base,
			Policy: retrip.Policy{
				Dialects:    []string{"azure"},
				RetryOn:     []int{http.StatusRequestTimeout},
				Unprocessed: []int{http.StatusTooManyRequests},
			},
		}},
	}
}
