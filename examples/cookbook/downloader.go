// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package cookbook

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip"
)

// Downloader returns a client for large files. If a body breaks or stalls, the
// Transport continues it with a range request; the reader notices nothing.
func Downloader(base http.RoundTripper) *http.Client {
	return &http.Client{Transport: &retrip.Transport{
		Base: base,
		Policy: retrip.Policy{
			AttemptTimeout:  10 * time.Second, // up to the headers; it never cuts a body
			BodyIdleTimeout: 15 * time.Second,
			Resume:          time.Minute, // without a new byte
		},
	}}
}

// Download writes the file at url to w. If it returns nil, w has the whole
// file, and no bytes of another version of it.
func Download(ctx context.Context, client *http.Client, url string, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// net/http asks for gzip by default, and can't continue what it unpacks.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
