// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package sdks contains clients for well-known services that use retrip for retries and
// have their own retries switched off, because attempts would multiply. Each
// function shows two things: where the SDK takes a transport, and how to turn
// off its retries. The policies follow the documentation of the services. The
// tests run each client against a server that throttles like the service.
//
// The SDKs that take minutes to build are in the module heavy, which make heavy
// tests: AWS, Google Cloud, Azure, OpenAI, Anthropic, Kubernetes, Elasticsearch
// and MinIO.
//
// Which layer should retry? Only one, and it should be the one that knows the
// call. If an SDK signs above the transport and the signature contains the
// time, as with AWS, leave the retries to the SDK, and set MaxAttempts to 1
// here. If credentials are tokens, or a RoundTripper of yours adds them below
// retrip, switch off the SDK's retries. Then one policy, one breaker and one
// set of metrics cover all services.
package sdks
