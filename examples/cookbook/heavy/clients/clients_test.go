// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

// Package clients runs other people's clients on top of retrip.
package clients

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/digitalocean/godo"
	"github.com/go-resty/resty/v2"
	"github.com/google/go-containerregistry/pkg/name"
	containers "github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/linode/linodego"
	"github.com/ncw/swift/v2"
	"github.com/opensearch-project/opensearch-go/v4/opensearchtransport"
	"github.com/regclient/regclient"
	"github.com/regclient/regclient/config"
	"github.com/regclient/regclient/scheme/reg"
	"github.com/regclient/regclient/types/ref"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vultr/govultr/v3"
	gitlab "gitlab.com/gitlab-org/api/client-go"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/retrip/retrip"
)

// TestClients_RetripAloneRetries runs rows of the table in docs/cookbook.md: with retrip
// beneath a library, and its own retries off, a read that always fails is sent four times.
func TestClients_RetripAloneRetries(t *testing.T) {
	for library, read := range map[string]func(ctx context.Context, url string, rt http.RoundTripper) error{
		"gitlab client-go": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c, err := gitlab.NewClient("token", gitlab.WithBaseURL(url), gitlab.WithHTTPClient(&http.Client{Transport: rt}), gitlab.WithoutRetries())
			if err == nil {
				_, _, err = c.Projects.GetProject(1, nil, gitlab.WithContext(ctx))
			}
			return err
		},
		"go-containerregistry": func(ctx context.Context, url string, rt http.RoundTripper) error {
			image, err := name.ParseReference(strings.TrimPrefix(url, "http://")+"/image:tag", name.Insecure)
			if err == nil {
				_, err = containers.Get(image, containers.WithContext(ctx), containers.WithTransport(rt), containers.WithRetryStatusCodes(), containers.WithRetryBackoff(containers.Backoff{Steps: 1}))
			}
			return err
		},
		"godo": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c, err := godo.New(&http.Client{Transport: rt}, godo.SetBaseURL(url))
			if err == nil {
				_, _, err = c.Account.Get(ctx)
			}
			return err
		},
		"govultr": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c := govultr.NewClient(&http.Client{Transport: rt})
			c.SetRetryLimit(0)
			if err := c.SetBaseURL(url); err != nil {
				return err
			}
			_, _, err := c.Account.Get(ctx)
			return err
		},
		"hcloud-go": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c := hcloud.NewClient(hcloud.WithEndpoint(url), hcloud.WithHTTPClient(&http.Client{Transport: rt}), hcloud.WithRetryOpts(hcloud.RetryOpts{}))
			_, _, err := c.Server.GetByID(ctx, 1)
			return err
		},
		"linodego": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c := linodego.NewClient(&http.Client{Transport: rt})
			c.SetBaseURL(url)
			c.SetRetryCount(0)
			_, err := c.GetInstance(ctx, 1)
			return err
		},
		"opensearch-go": func(ctx context.Context, at string, rt http.RoundTripper) error {
			address, err := url.Parse(at)
			if err != nil {
				return err
			}
			c, err := opensearchtransport.New(opensearchtransport.Config{URLs: []*url.URL{address}, Transport: rt, DisableRetry: true})
			if err != nil {
				return err
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
			if err == nil {
				err = fails(c.Perform(req))
			}
			return err
		},
		"oras-go": func(ctx context.Context, url string, rt http.RoundTripper) error {
			repo, err := remote.NewRepository(strings.TrimPrefix(url, "http://") + "/image")
			if err == nil {
				repo.PlainHTTP, repo.Client = true, &auth.Client{Client: &http.Client{Transport: rt}}
				_, err = repo.Resolve(ctx, "tag")
			}
			return err
		},
		"regclient": func(ctx context.Context, url string, rt http.RoundTripper) error {
			host := config.HostNewName(strings.TrimPrefix(url, "http://"))
			host.TLS = config.TLSDisabled
			c := regclient.New(regclient.WithConfigHost(*host), regclient.WithRegOpts(reg.WithHTTPClient(&http.Client{Transport: rt}), reg.WithRetryLimit(1)))
			image, err := ref.New(host.Name + "/image:tag")
			if err == nil {
				_, err = c.ManifestGet(ctx, image)
			}
			return err
		},
		"resty": func(ctx context.Context, url string, rt http.RoundTripper) error {
			resp, err := resty.New().SetTransport(rt).R().SetContext(ctx).Get(url)
			if err == nil {
				err = fails(resp.RawResponse, nil)
			}
			return err
		},
		"swift": func(ctx context.Context, url string, rt http.RoundTripper) error {
			c := swift.Connection{UserName: "user", ApiKey: "key", AuthUrl: url + "/v1.0", AuthVersion: 1, Retries: -1, Transport: rt}
			return c.Authenticate(ctx)
		},
	} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			var sends atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				sends.Add(1)
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(http.StatusServiceUnavailable)
				io.WriteString(w, `{"errors": [{"reason": "later"}]}`)
			}))
			defer server.Close()
			rt := &retrip.Transport{Base: server.Client().Transport, Policy: retrip.Policy{Backoff: retrip.Backoff{Base: time.Millisecond}}}
			require.Error(t, read(t.Context(), server.URL, rt))
			assert.EqualValues(t, 4, sends.Load())
		})
	}
}

// fails makes a response of a failure an error.
func fails(resp *http.Response, err error) error {
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode >= 400 {
		return errors.New(resp.Status)
	}
	return nil
}
