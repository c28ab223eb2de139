// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"time"
)

// A pair is two requests, one through a peer and one through the reference,
// made one after the other over the same connection. Other load on the machine
// affects both alike, so pairs show differences far smaller than the difference
// between two runs of a loop.

// Turns is how many requests of each peer a block of pairs has.
const Turns = 200

// MeasureLoopback returns, for each peer and each block, the median time of a
// request over a loopback socket, divided by the median with bare net/http in
// the same block.
func MeasureLoopback(http2 bool, blocks int) (map[string][]float64, error) {
	server, base := newLoopback(http2)
	defer server.Close()
	defer base.CloseIdleConnections()
	call := newCall(context.Background(), http.MethodGet, server.URL, 0, false)
	doers := make([]Doer, len(Peers))
	for i, p := range Peers {
		doers[i] = p.Client(base, Usual)
		if _, err := fetch(doers[i], call, http2); err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	ratios := map[string][]float64{}
	for range blocks {
		times := make([][]time.Duration, len(Peers))
		for range Turns {
			for _, i := range rand.Perm(len(Peers)) {
				d, err := fetch(doers[i], call, http2)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", Peers[i].Name, err)
				}
				times[i] = append(times[i], d)
			}
		}
		bare := float64(median(times[0]))
		for i, p := range Peers[1:] {
			ratios[p.Name] = append(ratios[p.Name], float64(median(times[i+1]))/bare)
		}
	}
	return ratios, nil
}

// fetch makes a request and returns how long it took until its body was closed,
// which is when some peers release what they hold.
func fetch(d Doer, c *call, http2 bool) (time.Duration, error) {
	req := c.next()
	begin := time.Now()
	resp, err := d.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	took := time.Since(begin)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode != http.StatusOK || http2 != (resp.ProtoMajor == 2) {
		return 0, fmt.Errorf("%s over %s", resp.Status, resp.Proto)
	}
	return took, nil
}

// newLoopback returns a server on a loopback socket and a base transport for
// it.
func newLoopback(http2 bool) (*httptest.Server, *http.Transport) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "sixteen bytes ok")
	}))
	base := &http.Transport{MaxIdleConnsPerHost: 16}
	if !http2 {
		server.Start()
		return server, base
	}
	server.EnableHTTP2 = true
	server.StartTLS()
	base.ForceAttemptHTTP2 = true
	base.TLSClientConfig = &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	return server, base
}
