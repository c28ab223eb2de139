// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	vault "github.com/hashicorp/vault/api"

	"github.com/retrip/retrip"
)

// Vault returns a client of the server at address. TLS must be configured
// before: once the transport is wrapped, ConfigureTLS fails and other setters
// of vault.Config panic, since they expect an *http.Transport.
func Vault(address string) (*vault.Client, error) {
	config := vault.DefaultConfig()
	if config.Error != nil {
		return nil, config.Error
	}
	config.Address = address
	config.HttpClient.Transport = &retrip.Transport{Base: config.HttpClient.Transport}
	config.MaxRetries = 0 // it makes two by default, by go-retryablehttp
	return vault.NewClient(config)
}
