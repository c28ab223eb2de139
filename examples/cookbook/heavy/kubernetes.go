// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/retrip/retrip"
)

// Kubernetes returns a client for the API server that config names. client-go
// itself retries responses with Retry-After up to ten times, and its typed
// clients can't turn that off. retrip below it retries first: client-go sees a
// Retry-After only if retrip has given up. A request made by RESTClient can
// turn off client-go's retries with MaxRetries(0).
func Kubernetes(config *rest.Config) (*kubernetes.Clientset, error) {
	config = rest.CopyConfig(config)
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		return &retrip.Transport{Base: base, Policy: retrip.Policy{
			// The API server's flow control answers 429 before it does
			// anything.
			Unprocessed: []int{http.StatusTooManyRequests},
		}}
	})
	return kubernetes.NewForConfig(config)
}
