// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package resume

import (
	"net/http"
	"testing"

	"github.com/retrip/retrip/internal/testenv"
)

// An answer with a header of twice the size costs less than three times the time,
// whichever field is long, and however.
//
//retrip:promise P12
func TestOf_Growth(t *testing.T) {
	const date, later = "Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:49:37 GMT"
	byTag := http.Header{"Etag": {`"a"`}, "Content-Range": {"bytes 0-9/10"}}
	byDate := http.Header{"Last-Modified": {date}, "Date": {later}, "Age": {"0"}, "Vary": {"Accept"}, "Content-Range": {"bytes 0-9/10"}}
	parts := []string{"9", "0", " ", "\t", "-", "/", "*", `"`, `\`, "bytes ", "bytes 0-9/10,", date + ", ", "identity,", "multipart/", "none,", "é"}
	for _, field := range []string{
		"Content-Range", "Etag", "Last-Modified", "Date", "Age", "Vary", "Content-Encoding", "Content-Type", "Accept-Ranges", "Range",
	} {
		for _, part := range parts {
			t.Run(field+"/"+part, func(t *testing.T) {
				input := func(n int) (all []http.Header) {
					for _, values := range testenv.LongValues(n, part) {
						for _, h := range []http.Header{byTag, byDate} {
							changed := h.Clone()
							changed[field] = values
							all = append(all, changed)
						}
					}
					return all
				}
				testenv.Growth(t, 5_000, input, func(all []http.Header) {
					for _, h := range all {
						for _, status := range []int{http.StatusOK, http.StatusPartialContent} {
							resp := &http.Response{StatusCode: status, Header: h, ContentLength: 10}
							for _, asked := range []http.Header{{"Range": {"bytes=0-9"}}, h} {
								r, _ := Of(&http.Request{Method: http.MethodGet, Header: asked}, resp)
								_ = r.Ask(asked, 0)
							}
							for _, r := range []Representation{{etag: `"a"`, Last: 9, total: 10}, {date: date, Last: 9, total: 10}} {
								_, _ = r.Accept(resp, 5)
							}
						}
					}
				})
			})
		}
	}
}
