// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestIsStream(t *testing.T) {
	for want, kinds := range map[bool][]string{
		true: {
			"text/event-stream", "TEXT/Event-Stream; charset=utf-8", " text/event-stream;charset=utf-8", "text/event-stream,text/event-stream",
			"text/event-stream charset=utf-8", "application/x-dom-event-stream", "application/vnd.amazon.eventstream", "application/vnd.acme.v2+event-stream",
			"application/jsonl", "application/x-jsonl", "text/jsonl", "application/jsonlines", "application/x-jsonlines", "application/json-lines", "text/x-json-lines",
			"application/ndjson", "application/x-ndjson", "application/X-NDJSON;charset=utf-8", "text/x-ndjson", "application/x-nd-json", "application/ldjson",
			"application/x-ldjson", "application/vnd.elasticsearch+x-ndjson;compatible-with=8", "application/vnd.acme.jobs+jsonl",
			"application/json-seq", "application/geo+json-seq", "application/cbor-seq", "application/senml+cbor-seq",
			"application/stream+json", "application/stream+json;charset=UTF-8", "application/x-json-stream", "application/jsonstream",
			"application/vnd.ksqlapi.delimited.v1", "application/json;stream=watch", "application/vnd.kubernetes.protobuf; stream=watch",
			"application/vnd.docker.raw-stream", "application/vnd.docker.multiplexed-stream",
			"multipart/x-mixed-replace; boundary=x", "multipart/mixed", `Multipart/Mixed; boundary="-"; deferSpec=20220824`,
			"application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpc-web-text+proto", "application/connect+json",
		},
		false: {
			"", ";", "/", "text", "text/plain", "text/html; charset=utf-8", "application/json", "application/json; note=event-stream", "application/ld+json", "application/hal+json",
			"application/octet-stream", "binary/octet-stream", "application/vnd.apache.arrow.stream", "application/jsonml+json", "application/json-patch+json",
			"application/json;odata.metadata=minimal;odata.streaming=true", "application/proto", "multipart/form-data; boundary=x",
			"multipart/byteranges; boundary=mixed", "multipart/mixed-up", "audio/mixed", "application/connect", "application/vnd.google.protobuf; encoding=delimited",
			"text/csv", "x-event", "application/events+json",
		},
	} {
		for _, kind := range kinds {
			assert.Equal(t, want, IsStream(http.Header{"Content-Type": {kind}}), kind)
		}
	}
	assert.True(t, IsStream(http.Header{"Content-Type": {"text/plain", "text/event-stream"}}))
	assert.False(t, IsStream(nil))
	for _, kind := range []string{"application/vnd.acme.v2+json; charset=utf-8", "application/octet-stream", "text/event-stream"} {
		h := http.Header{"Content-Type": {kind}}
		assert.Zero(t, testing.AllocsPerRun(100, func() { IsStream(h) }), kind)
	}
}
