// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package sdks

import (
	"time"

	vault "github.com/hashicorp/vault/api"

	"github.com/retrip/retrip"
)

// Vault returns a client for the server at address. Configure TLS before: once
// the transport is wrapped, ConfigureTLS fails and other setters of
// vault.Config panic, because they expect an *http.Transport.
func Vault(address string) (*vault.Client, error) {
	config := vault.DefaultConfig()
	if config.Error != nil {
		return nil, config.Error
	}
	config.Address = address
	config.HttpClient.Transport = &retrip.Transport{
		Base:   config.HttpClient.Transport,
		Policy: retrip.Policy{AttemptTimeout: 10 * time.Second, Deadline: 45 * time.Second},
	}
	config.MaxRetries = 0 // the default is two, by go-retryablehttp
	return vault.NewClient(config)
}
