// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

var (
	pageLink    = regexp.MustCompile(`(?:\]\(|\b(?:src|srcset|href)=")([^)"\s]+)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	codeBlock   = regexp.MustCompile("(?ms)^```.*?^```|^(?:    |\t)[^\n]*$")
	fileSpan    = regexp.MustCompile("`([\\w./-]+/[\\w.-]+\\.(?:go|md|yml|json))`")
)

// checkLinks reports links in pages to files for which exists returns false, and
// to headings that the page doesn't have.
func checkLinks(pages map[string]string, exists func(name string) bool) []string {
	var problems []string
	prose := map[string]string{}
	for name, text := range pages {
		prose[name] = codeBlock.ReplaceAllString(text, "")
	}
	for name, text := range prose {
		for _, m := range fileSpan.FindAllStringSubmatch(text, -1) {
			if !exists(m[1]) && !exists(path.Join("internal", m[1])) {
				problems = append(problems, fmt.Sprintf("%s: %s doesn't exist", name, m[0]))
			}
		}
		for _, m := range pageLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], ":") {
				continue // a link to another site
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := name
			if file != "" {
				target = path.Join(path.Dir(name), file)
			}
			if !exists(target) {
				problems = append(problems, fmt.Sprintf("%s: %s doesn't exist", name, m[1]))
				continue
			}
			page, ok := prose[target]
			if anchor == "" || !ok {
				continue
			}
			if !slices.ContainsFunc(pageHeading.FindAllStringSubmatch(page, -1), func(h []string) bool { return anchorOf(h[1]) == anchor }) {
				problems = append(problems, fmt.Sprintf("%s: %s has no heading #%s", name, target, anchor))
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// anchorOf returns the anchor that GitHub generates for a heading.
func anchorOf(heading string) string {
	heading = strings.ReplaceAll(strings.ToLower(heading), " ", "-")
	return regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(heading, "")
}

// TestLinks checks every link between the pages of the repository, and the files
// that they name.
func TestLinks(t *testing.T) {
	assert.Empty(t, checkLinks(pagesOf(readRepository(t)), exists))
}

func TestLinks_SeesWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name, page string
		problems   []string
	}{
		{"good links", "[a](b.md#the-end) [b](#here) [c](b.md) [d](https://example.com/#x) `docs/b.md`\n# Here", nil},
		{"no such page", "[a](c.md)", []string{"docs/a.md: c.md doesn't exist"}},
		{"no such file", "`docs/c.md`", []string{"docs/a.md: `docs/c.md` doesn't exist"}},
		{"no such picture", `<img src="c.svg">`, []string{"docs/a.md: c.svg doesn't exist"}},
		{"no such heading there", "[a](b.md#the-beginning)", []string{"docs/a.md: docs/b.md has no heading #the-beginning"}},
		{"no such heading here", "[a](#here)", []string{"docs/a.md: docs/a.md has no heading #here"}},
		{"a comment in code is no heading", "[a](#here)\n```sh\n# here\n```", []string{"docs/a.md: docs/a.md has no heading #here"}},
		{"a link in code is none", "```\n[a](c.md)\n```\n\n    [a](c.md)", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			pages := map[string]string{"docs/a.md": c.page, "docs/b.md": "# B\n\n## The end\n"}
			assert.Equal(t, c.problems, checkLinks(pages, func(name string) bool { return pages[name] != "" }))
		})
	}
}
