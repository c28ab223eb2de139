// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package doccheck

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
)

// oldStyle matches phrases that read as translated. Each has a plain form: a
// body is replayed, a host has recorded failures, an owner decides.
var oldStyle = regexp.MustCompile(`(?i)\bhad (only )?(again|once)\b|\bcan be had\b|\b(speaks?|spoke) against\b|\bremembered of\b|\bthe herd needs\b|` +
	`'s to (tell|say)\b|\b(have|has|had) a say\b|\btaken for dead\b|\bwhat (is|was) met\b|\b(has|have) nothing to say\b|` +
	`\bin vain\b|\bis told so at once\b|\bwhat is under way\b|\bin spite of\b|\bcame of it\b|\bfor who(m)?ever\b|\bwhoever may\b|` +
	`\bas long as the server asks\b|\bis to be seen of\b|\bleft alone for now\b|\bholds nobody back\b|\babove suspicion\b|\bfor want of\b|` +
	`\b(can|can't|cannot) heal\b|\bretry heals\b|\bis all there is\b|\bout of attempts with\b|\bas far as it goes\b|\bis code: it can't\b|` +
	`\bbrown-outs?\b|\bgood meanwhile\b|\bhidden sends?\b|\blost by the past\b|\bcoming (up|down)\b|\btroubles? of \d|\blengths? of (the )?trouble\b|\b(in|after) the trouble\b|` + // the field's words: brownout, transparent retry, lost capacity, load rising
	`\bstands in the log\b|\bsomebody looked\b|\bof no use\b|\beverything inherited\b|\bwhat (is|was) remembered\b|\bwith all that it comes to\b`)

// lineBreak is what separates two lines of a paragraph, in Markdown or in a
// comment.
var lineBreak = regexp.MustCompile(`\n[ \t]*(//|#)?[ \t]*`)

// oldPhrases returns the phrases of the old style in a file.
func oldPhrases(text string) []string {
	return oldStyle.FindAllString(lineBreak.ReplaceAllString(text, " "), -1)
}

// TestWords_NoOldStyle checks the pages, comments, texts and alerts of all
// modules.
func TestWords_NoOldStyle(t *testing.T) {
	for name, text := range readRepository(t) {
		if name != "internal/doccheck/words_test.go" {
			assert.Empty(t, oldPhrases(text), name)
		}
	}
}

func TestWords_Check(t *testing.T) {
	for _, text := range []string{
		"A body that can be had again", "// unless something speaks\n\t// against it", "# waits as long\n# as the server asks", `description: "Hosts left alone for now."`,
	} {
		assert.NotEmpty(t, oldPhrases(text), text)
	}
	assert.Empty(t, oldPhrases("The Transport had one attempt left. Again, it waits."))
}
