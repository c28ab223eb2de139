// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// oldStyle matches phrases that read as if translated. Each has a plain form: a
// body is replayed, a host has recorded failures, an owner decides.
var oldStyle = regexp.MustCompile(`(?i)\bhad (only )?(again|once)\b|\bcan be had\b|\bspeaks? against\b|\bremembered of\b|\bthe herd needs\b|` +
	`'s to (tell|say)\b|\b(have|has|had) a say\b|\btaken for dead\b|\bwhat was met\b|\bhas nothing to say\b|\bhave nothing to say\b|` +
	`\bin vain\b|\bis told so at once\b|\bwhat is under way\b|\bin spite of\b|\bcame of it\b|\bfor whomever\b|\bwhoever may\b`)

// plain are the directories and pages that oldStyle must not match. The list
// grows with the pages that are revised.
var plain = []string{
	"README.md", "docs/policy.md", "docs/rate-limits.md", "docs/metrics.md", "docs/runbook.md", "docs/platform-engineers.md", "docs/migrating.md", "docs/compatibility.md", "docs/server-owners.md", "docs/sdk-authors.md", "docs/when-not-to-use.md", "docs/not-built.md", "docs/retry-storms.md", "CHANGELOG.md", "statuspage/", "sim/", "cmd/retripsim/", "shed/", "internal/alarm/", "internal/attempt/", "internal/incoming/",
	"internal/memhttp/", "internal/replay/", "internal/storm/", "lab/", "bench/", "peers/", "ops/", "examples/README.md",
	"examples/breaker/", "examples/deadline/", "examples/idempotency/", "examples/metrics/", "examples/otel/", "examples/perhost/",
	"examples/quickstart/", "examples/ratelimited/", "examples/reload/", "examples/reverseproxy/", "examples/shed/", "examples/webhooks/",
}

// TestWords_NoOldStyle checks the revised pages and comments line by line.
func TestWords_NoOldStyle(t *testing.T) {
	for name, text := range readRepository(t) {
		for _, prefix := range plain {
			if strings.HasPrefix(name, prefix) {
				assert.Empty(t, oldStyle.FindAllString(strings.ReplaceAll(text, "\n", " "), -1), name)
			}
		}
	}
}
