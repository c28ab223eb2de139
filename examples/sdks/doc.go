// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Sdks has clients of known services that retry by retrip, and not also by
// themselves: attempts would multiply. Each function shows two things, where the
// SDK takes a transport and how its own retries are turned off. The policies are
// what the services document. The program makes a call by each, to a server that
// is busy at first; the tests run each client against a server that throttles as
// the service does.
//
// The SDKs that take minutes to build are in the module heavy, which make sdks
// tests: those of AWS, Google Cloud, Azure, OpenAI, Anthropic, Kubernetes,
// Elasticsearch and MinIO.
//
// Which layer should retry? The one that knows the call, and only one. Where an
// SDK signs above the transport with the time in the signature, as that of AWS
// does, leave the retries to the SDK, and have MaxAttempts: 1 here. Where
// credentials are tokens, or are added by a RoundTripper of yours under retrip,
// switch the SDK's off: then there is one budget, one breaker and one set of
// metrics for all services.
package main
