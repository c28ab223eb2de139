// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package world

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

// stranger returns the host, as in a URL, of a server that doesn't exist. It refuses
// connections if known is true, and otherwise there is no such host.
func stranger(n int, known bool) string {
	if known {
		return fmt.Sprintf([]string{"refuses-%d.test", "REFUSES-%d.test.", "refuses-bücher-%d.test", "refuses-%d.test:8443"}[n%4], n)
	}
	switch n % 8 {
	case 0:
		return fmt.Sprintf("[2001:db8::%x]", n)
	case 1:
		return fmt.Sprintf("[FE80::%x%%25eth0]:8080", n)
	case 2:
		return fmt.Sprintf("bücher-%d.test", n)
	case 3:
		return fmt.Sprintf("NOBODY-%d.test.", n)
	case 4:
		return fmt.Sprintf("192.0.2.%d:0%d", n%250, 1+n%9000)
	case 5:
		return fmt.Sprintf("[0:0::ffff:192.0.2.%d]:443", n%250)
	case 6:
		return fmt.Sprintf("nobody-%d。test", n)
	}
	return fmt.Sprintf("nobody-%d.test", n)
}

// meet sends requests to that many strangers at once.
func (c *client) meet(strangers int, salt uint64) {
	w := c.w
	c.mu.Lock()
	c.forgot = true
	c.strangers += strangers
	c.mu.Unlock()
	var requests sync.WaitGroup
	for i := range strangers {
		requests.Go(func() {
			n := int((salt + uint64(i)) % 50_000)
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			p := retrip.Policy{MaxAttempts: 1 + min(1, i%4), AttemptTimeout: 10 * time.Second}
			host := stranger(n, i%8 != 0)
			req, err := http.NewRequestWithContext(retrip.WithPolicy(ctx, p), http.MethodGet, "http://"+host+"/", nil)
			must(err)
			resp, err := c.retrip.RoundTrip(req)
			if err == nil {
				w.breaks("P3", "t%d: %s answers %d, and there is no such server", c.number, host, resp.StatusCode)
				_ = resp.Body.Close()
			}
			if i%64 == 0 {
				if !strings.Contains(host, "]:") && strings.Count(host, ":") != 1 {
					host += ":80"
				}
				s, err := c.retrip.HostState(host)
				if err != nil {
					w.breaks("P15", "t%d: the state of %s: %v", c.number, host, err)
				}
				w.plausible(c, s)
			}
		})
	}
	requests.Wait()
}
