// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/retrip/retrip"
)

// call makes a PUT through traced to a server that gives the statuses, one
// after another, and returns the spans as they ended and what the server got.
func call(t *testing.T, policy retrip.Policy, statuses ...int) (spans tracetest.SpanStubs, traceparents, bodies []string) {
	t.Helper()
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		traceparents = append(traceparents, r.Header.Get("Traceparent"))
		bodies = append(bodies, string(body))
		w.WriteHeader(statuses[min(len(bodies), len(statuses))-1])
	}))
	defer server.Close()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	client := &http.Client{Transport: traced(server.Client().Transport, policy, provider)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL, strings.NewReader("body"))
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return exporter.GetSpans(), traceparents, bodies
}

func attributeOf(span tracetest.SpanStub, key attribute.Key) any {
	for _, a := range span.Attributes {
		if a.Key == key {
			return a.Value.AsInterface()
		}
	}
	return nil
}

func TestTraced_OneSpanPerAttemptAndOneForTheWhole(t *testing.T) {
	spans, traceparents, bodies := call(t, retrip.Policy{Backoff: retrip.Backoff{Base: retrip.Off}}, 503, 502, 200)
	require.Len(t, spans, 4)
	whole := spans[3]
	assert.Equal(t, "PUT with retries", whole.Name)
	assert.Equal(t, trace.SpanKindInternal, whole.SpanKind)
	assert.Equal(t, int64(200), attributeOf(whole, "http.response.status_code"))
	assert.Nil(t, attributeOf(whole, "http.request.resend_count"))
	assert.Equal(t, codes.Unset, whole.Status.Code)
	require.Len(t, whole.Events, 2)
	for _, event := range whole.Events {
		assert.Equal(t, "retry", event.Name)
		assert.Contains(t, event.Attributes, attribute.String("retrip.reason", "server_error"))
	}
	require.Len(t, traceparents, 3)
	for i, span := range spans[:3] {
		assert.Equal(t, trace.SpanKindClient, span.SpanKind)
		assert.Equal(t, whole.SpanContext.SpanID(), span.Parent.SpanID(), "attempt %d is part of the whole", i+1)
		assert.Equal(t, []any{int64(503), int64(502), int64(200)}[i], attributeOf(span, "http.response.status_code"))
		assert.Equal(t, []any{nil, int64(1), int64(2)}[i], attributeOf(span, "http.request.resend_count"))
		assert.Contains(t, traceparents[i], span.SpanContext.SpanID().String(), "the server's parent is the attempt")
		assert.Contains(t, traceparents[i], whole.SpanContext.TraceID().String())
	}
	assert.Equal(t, []string{"body", "body", "body"}, bodies)
}

func TestTraced_TellsWhyItGaveUp(t *testing.T) {
	spans, _, _ := call(t, retrip.Policy{MaxAttempts: 1}, 503)
	require.Len(t, spans, 2)
	whole := spans[1]
	require.Len(t, whole.Events, 1)
	assert.Equal(t, "give up", whole.Events[0].Name)
	assert.Contains(t, whole.Events[0].Attributes, attribute.String("retrip.reason", "max_attempts"))
	assert.Equal(t, codes.Error, whole.Status.Code)
}
