// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package stores

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/lab"
)

// store is a server with one large object.
type store struct {
	name    string
	handler http.Handler

	// put stores the content and returns its path.
	put func(t *testing.T, server string, content []byte) string
}

// stores returns the servers under test, which are real implementations that
// keep their objects in memory.
func stores(t *testing.T) []store {
	config, err := configuration.Parse(strings.NewReader("version: 0.1\nlog: {level: error, accesslog: {disabled: true}}\nstorage: {inmemory: {}}\nhttp: {secret: lab}\n"))
	require.NoError(t, err)
	return []store{
		{"object store", gofakes3.New(s3mem.New(), gofakes3.WithAutoBucket(true)).Server(), putObject},
		{"registry", handlers.NewApp(t.Context(), config), pushLayer},
	}
}

func putObject(t *testing.T, server string, content []byte) string {
	const path = "/models/weights.bin"
	resp := send(t, http.MethodPut, server+path, content)
	require.Equal(t, 200, resp.StatusCode)
	return path
}

// pushLayer pushes the content as a layer of an image, in one request after the
// start of an upload.
func pushLayer(t *testing.T, server string, content []byte) string {
	resp := send(t, http.MethodPost, server+"/v2/team/image/blobs/uploads/", nil)
	require.Equal(t, 202, resp.StatusCode)
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(content))
	resp = send(t, http.MethodPut, resp.Header.Get("Location")+"&digest="+digest, content)
	require.Equal(t, 201, resp.StatusCode)
	return "/v2/team/image/blobs/" + digest
}

// send makes a request without retrip and discards the response body.
func send(t *testing.T, method, url string, content []byte, header ...string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(content))
	require.NoError(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp
}

func content(size int) []byte {
	random := rand.New(rand.NewPCG(uint64(size), 1))
	b := make([]byte, 0, size)
	for len(b) < size {
		b = binary.LittleEndian.AppendUint64(b, random.Uint64())
	}
	return b
}

// Large objects of real stores arrive whole through a proxy that cuts the
// connection in each of its ways.
func TestStores(t *testing.T) {
	const size, every = 64 << 20, 5 << 20
	object := content(size)
	for _, s := range stores(t) {
		plain := httptest.NewServer(s.handler)
		defer plain.Close()
		path := s.put(t, plain.URL, object)
		for _, p := range []lab.Proto{lab.HTTP1, lab.H2C} {
			t.Run(fmt.Sprintf("%s, %s", s.name, p), func(t *testing.T) {
				server := lab.Serve(p, s.handler)
				defer server.Close()
				d, err := lab.Fetch(t.Context(), server.Listener.Addr().String(), path, every, p)
				require.NoError(t, err)
				assert.EqualValues(t, size, d.Size)
				assert.Equal(t, sha256.Sum256(object), d.SHA256)
				assert.GreaterOrEqual(t, d.Continued, size/every-1)
				assert.LessOrEqual(t, d.Overhead(), 1.01)
				t.Logf("%d continuations, %.4f × the bytes on the wire", d.Continued, d.Overhead())
			})
		}
	}
}

// Facts that decide whether a body can be continued: the ETag, Accept-Ranges,
// and the status for a closed range with the right If-Range and with a wrong
// one, and for an open range.
func TestStores_Facts(t *testing.T) {
	object := content(1 << 20)
	sum := fmt.Sprintf(`"%x"`, md5.Sum(object))
	digest := fmt.Sprintf(`"sha256:%x"`, sha256.Sum256(object))
	want := map[string][]string{
		"object store": {sum, "bytes", "206", "206", "206"},
		"registry":     {digest, "bytes", "206", "200", "206"},
	}
	for _, s := range stores(t) {
		server := httptest.NewServer(s.handler)
		defer server.Close()
		url := server.URL + s.put(t, server.URL, object)
		whole := send(t, http.MethodGet, url, nil)
		require.Equal(t, 200, whole.StatusCode)
		etag := whole.Header.Get("ETag")
		status := func(header ...string) string {
			return fmt.Sprint(send(t, http.MethodGet, url, nil, header...).StatusCode)
		}
		assert.Equal(t, want[s.name], []string{
			etag,
			whole.Header.Get("Accept-Ranges"),
			status("Range", "bytes=10-1048575", "If-Range", etag),
			status("Range", "bytes=10-1048575", "If-Range", `"another"`),
			status("Range", "bytes=10-"),
		}, s.name)
	}
}

// If an object is replaced while it is read, the body ends. Bytes of two
// objects are never joined, although the object store ignores If-Range.
func TestStores_ObjectReplaced(t *testing.T) {
	const size, every = 4 << 20, 1 << 20
	before, after := content(size), content(size + 8)[8:]
	s := stores(t)[0]
	plain := httptest.NewServer(s.handler)
	defer plain.Close()
	path := s.put(t, plain.URL, before)
	var gets atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gets.Add(1) == 3 {
			s.put(t, plain.URL, after)
		}
		s.handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	d, err := lab.Fetch(t.Context(), server.Listener.Addr().String(), path, every, lab.HTTP1)
	require.ErrorContains(t, err, "changed")
	assert.Equal(t, 1, d.Continued)
	assert.Less(t, d.Size, int64(size))
	assert.Equal(t, sha256.Sum256(before[:d.Size]), d.SHA256)
}
