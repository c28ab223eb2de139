// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package heavy

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"google.golang.org/api/option"

	"github.com/retrip/retrip"
)

// cloud is a service that never recovers. It records what was sent.
type cloud struct {
	*httptest.Server
	mu      sync.Mutex
	headers []http.Header
}

func newCloud(t *testing.T, status int, body string, header ...string) *cloud {
	c := &cloud{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		c.headers = append(c.headers, r.Header.Clone())
		c.mu.Unlock()
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		w.Write([]byte(body))
	}))
	t.Cleanup(c.Close)
	return c
}

// different counts the different values of a header.
func (c *cloud) different(name string) int {
	values := map[string]bool{}
	for _, h := range c.headers {
		values[h.Get(name)] = true
	}
	return len(values)
}

func TestS3(t *testing.T) {
	slowDown := `<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>`
	for name, tt := range map[string]struct {
		client func(aws.Config, http.RoundTripper) *s3.Client
		sends  int
		signed int // minimum number of signatures
	}{
		"as it should be": {S3, 3, 2},
		// It would be 3 times 4, but the budget ends the retries: 4, 4 and 2.
		"both layers": {func(c aws.Config, base http.RoundTripper) *s3.Client {
			c.HTTPClient = &http.Client{Transport: &retrip.Transport{Base: base}}
			return s3.NewFromConfig(c)
		}, 10, 2},
		"retrip alone, with one signature": {func(c aws.Config, base http.RoundTripper) *s3.Client {
			c.HTTPClient = &http.Client{Transport: &retrip.Transport{Base: base}}
			c.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
			return s3.NewFromConfig(c)
		}, 4, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, 503, slowDown, "Content-Type", "application/xml")
			config := aws.Config{
				Region:       "eu-central-1",
				BaseEndpoint: aws.String(c.URL),
				Credentials:  credentials.NewStaticCredentialsProvider("AKIAIOSFODNN7EXAMPLE", "secret", ""),
			}
			_, err := tt.client(config, c.Client().Transport).GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("key")},
				func(o *s3.Options) { o.UsePathStyle = true })
			require.Error(t, err)
			assert.Len(t, c.headers, tt.sends)
			assert.NotEmpty(t, c.headers[0].Get("Authorization"))
			if tt.signed == 1 {
				assert.Equal(t, 1, c.different("Authorization"))
				assert.Equal(t, 1, c.different("Amz-Sdk-Request"), "and all are numbered as first attempts")
			} else {
				assert.GreaterOrEqual(t, c.different("Amz-Sdk-Request"), 3)
			}
		})
	}
}

// tokens counts how often the SDK asks for a token.
type tokens struct{ asked int }

func (s *tokens) Token() (*oauth2.Token, error) {
	s.asked++
	return &oauth2.Token{AccessToken: "token", Expiry: time.Now().Add(time.Hour)}, nil
}

func TestGoogleStorage(t *testing.T) {
	c := newCloud(t, 503, `{"error":{"code":503,"message":"Backend Error"}}`, "Content-Type", "application/json")
	source := &tokens{}
	client, err := GoogleStorage(t.Context(), c.Client().Transport, source, option.WithEndpoint(c.URL+"/storage/v1/"))
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Bucket("bucket").Object("key").Attrs(t.Context())
	require.Error(t, err)
	assert.Len(t, c.headers, 4, "by retrip alone")
	assert.Equal(t, 4, source.asked, "a token that is valid for each attempt")
	assert.Equal(t, "Bearer token", c.headers[3].Get("Authorization"))
}

func TestGoogleStorage_BothLayers(t *testing.T) {
	c := newCloud(t, 503, `{}`, "Content-Type", "application/json")
	client, err := GoogleStorage(t.Context(), c.Client().Transport, &tokens{}, option.WithEndpoint(c.URL+"/storage/v1/"))
	require.NoError(t, err)
	defer client.Close()
	client.SetRetry(storage.WithPolicy(storage.RetryIdempotent), storage.WithMaxAttempts(3))
	_, err = client.Bucket("bucket").Object("key").Attrs(t.Context())
	require.Error(t, err)
	assert.Len(t, c.headers, 4+4+2, "until the budget ends it")
}

func TestAzure(t *testing.T) {
	for name, tt := range map[string]struct {
		options func(http.RoundTripper) azcore.ClientOptions
		sends   int
	}{
		"as it should be": {AzureOptions, 4},
		// It would be 4 times 4, but the budget ends the retries: 4, 4, 2 and
		// 1.
		"both layers": {func(base http.RoundTripper) azcore.ClientOptions {
			o := AzureOptions(base)
			o.Retry = policy.RetryOptions{RetryDelay: time.Millisecond}
			return o
		}, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCloud(t, 503, `<Error><Code>ServerBusy</Code></Error>`, "Content-Type", "application/xml", "X-Ms-Error-Code", "ServerBusy")
			client, err := azblob.NewClientWithNoCredential(c.URL, &azblob.ClientOptions{ClientOptions: tt.options(c.Client().Transport)})
			require.NoError(t, err)
			_, err = client.DownloadStream(t.Context(), "container", "blob", nil)
			require.Error(t, err)
			assert.Len(t, c.headers, tt.sends)
		})
	}
}

func TestAzure_WaitsAsItSays(t *testing.T) {
	c := newCloud(t, 429, "", "X-Ms-Retry-After-Ms", "300")
	client, err := azblob.NewClientWithNoCredential(c.URL, &azblob.ClientOptions{ClientOptions: AzureOptions(c.Client().Transport)})
	require.NoError(t, err)
	start := time.Now()
	_, err = client.DownloadStream(t.Context(), "container", "blob", nil)
	require.Error(t, err)
	assert.Len(t, c.headers, 4)
	assert.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
}
