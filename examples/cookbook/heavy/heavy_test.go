// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/openai/openai-go/v3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// service is a fake that throttles its first requests. Some of these SDKs start
// goroutines that never end, so the tests can't run in a bubble. Their waits
// are a few milliseconds, or one second, which is the shortest Retry-After.
type service struct {
	*httptest.Server
	mu    sync.Mutex
	sends int
}

func (s *service) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sends
}

func newService(t *testing.T, throttled, status int, header http.Header, throttle, answer string) *service {
	t.Helper()
	s := &service{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		s.sends++
		n := s.sends
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Elastic-Product", "Elasticsearch")
		if n <= throttled {
			for name, values := range header {
				w.Header()[name] = values
			}
			w.WriteHeader(status)
			io.WriteString(w, throttle)
			return
		}
		w.Header().Set("Last-Modified", "Sat, 01 Jan 2000 00:00:00 GMT")
		w.Header().Set("ETag", `"1"`)
		io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s
}

func TestOpenAI(t *testing.T) {
	s := newService(t, 2, 429, http.Header{"Retry-After-Ms": {"5"}, "Retry-After": {"20"}, "X-Ratelimit-Remaining-Requests": {"0"}},
		`{"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}}`,
		`{"id": "1", "object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}}]}`)
	client := OpenAI(s.Client().Transport, s.URL, "key")
	answer, err := client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{
		Model: "gpt-4o", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
	})
	require.NoError(t, err)
	assert.Equal(t, "hello", answer.Choices[0].Message.Content)
	assert.Equal(t, 3, s.count())
}

func TestOpenAI_RetriesOnce(t *testing.T) {
	for code, sends := range map[string]int{"rate_limit_exceeded": 4, "insufficient_quota": 1} {
		s := newService(t, 100, 429, http.Header{"Retry-After-Ms": {"1"}}, `{"error": {"message": "no", "code": "`+code+`"}}`, "")
		client := OpenAI(s.Client().Transport, s.URL, "key")
		_, err := client.Models.List(t.Context())
		require.Error(t, err)
		assert.Equal(t, sends, s.count(), "by retrip alone")
	}
}

func TestAnthropic(t *testing.T) {
	s := newService(t, 2, 529, http.Header{"X-Should-Retry": {"true"}},
		`{"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}`,
		`{"id": "1", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "hello"}]}`)
	client := Anthropic(s.Client().Transport, s.URL, "key")
	answer, err := client.Messages.New(t.Context(), anthropic.MessageNewParams{
		Model: "claude-sonnet-4-5", MaxTokens: 10,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))},
	})
	require.NoError(t, err)
	assert.Equal(t, "hello", answer.Content[0].Text)
	assert.Equal(t, 3, s.count())
}

func TestAnthropic_HeedsTheWordNotToRetry(t *testing.T) {
	s := newService(t, 100, 529, http.Header{"X-Should-Retry": {"false"}}, `{"type": "error"}`, "")
	client := Anthropic(s.Client().Transport, s.URL, "key")
	_, err := client.Messages.New(t.Context(), anthropic.MessageNewParams{
		Model: "claude-sonnet-4-5", MaxTokens: 10,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))},
	})
	require.Error(t, err)
	assert.Equal(t, 1, s.count())
}

func TestElasticsearch(t *testing.T) {
	s := newService(t, 2, 429, nil, `{"error": {"type": "es_rejected_execution_exception"}, "status": 429}`, `{"cluster_name": "c"}`)
	client, err := Elasticsearch(s.Client().Transport, s.URL)
	require.NoError(t, err)
	resp, err := client.Info(client.Info.WithContext(t.Context()))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, 3, s.count())
}

func TestElasticsearch_RetriesOnce(t *testing.T) {
	s := newService(t, 100, 503, nil, `{}`, "")
	client, err := Elasticsearch(s.Client().Transport, s.URL)
	require.NoError(t, err)
	resp, err := client.Info(client.Info.WithContext(t.Context()))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 503, resp.StatusCode)
	assert.Equal(t, 4, s.count(), "by retrip alone")
}

func TestMinIO(t *testing.T) {
	for _, tt := range []struct {
		name             string
		throttled, sends int
	}{{"heals", 2, 3}, {"retries once", 100, 4}} {
		t.Run(tt.name, func(t *testing.T) {
			s := newService(t, tt.throttled, 503, nil, "", "content")
			client, err := MinIO(s.Client().Transport, s.Listener.Addr().String(), credentials.NewStaticV4("id", "secret", ""))
			require.NoError(t, err)
			_, err = client.StatObject(t.Context(), "bucket", "object", minio.StatObjectOptions{})
			assert.Equal(t, tt.throttled < 4, err == nil, "%v", err)
			assert.Equal(t, tt.sends, s.count())
		})
	}
}

func TestKubernetes(t *testing.T) {
	s := newService(t, 1, 429, http.Header{"Retry-After": {"1"}},
		`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "TooManyRequests", "code": 429}`,
		`{"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}`)
	client, err := Kubernetes(&rest.Config{Host: s.URL})
	require.NoError(t, err)
	pod, err := client.CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{})
	require.NoError(t, err)
	assert.Equal(t, "p", pod.Name)
	assert.Equal(t, 2, s.count())
}

func TestKubernetes_RetriesOnce(t *testing.T) {
	s := newService(t, 100, 429, http.Header{"Retry-After": {"40"}}, `{"kind": "Status", "apiVersion": "v1", "code": 429}`, "")
	client, err := Kubernetes(&rest.Config{Host: s.URL})
	require.NoError(t, err)
	err = client.CoreV1().RESTClient().Get().AbsPath("/version").MaxRetries(0).Do(t.Context()).Error()
	require.Error(t, err)
	assert.Equal(t, 1, s.count(), "40 s is more than MaxWait, and client-go doesn't retry either")
}
