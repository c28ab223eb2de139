// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/retrip/retrip"
)

// Kubernetes returns a client of the API server that config names. client-go
// itself retries answers with Retry-After, up to ten times, and its typed
// clients have no switch for that. Retrip under it comes first: client-go only
// sees a Retry-After when retrip has given up. A request made by
// RESTClient can turn client-go's retries off with MaxRetries(0).
func Kubernetes(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return &retrip.Transport{Base: base, Policy: retrip.Policy{
			// The API server's flow control answers 429 before anything is done.
			Unprocessed: []int{http.StatusTooManyRequests},
		}}
	})
	return kubernetes.NewForConfig(config)
}
