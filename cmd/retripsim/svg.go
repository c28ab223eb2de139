// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// fontFamily begins with the font used to measure texts. Arial and Helvetica
// have the same widths; other fonts are squeezed to fit.
const fontFamily = "'Liberation Sans',Arial,Helvetica,sans-serif"

var (
	svgStart = regexp.MustCompile(`<svg [^>]*`)
	svgText  = regexp.MustCompile(`transform="scale\(1, -1\)"\s+style="font-family:[^;"]*([^"]*font-size:([0-9.]+)px[^"]*)">([^<]*)<`)
)

// writeSVG writes the drawing with a title, a description, and fonts that every
// system has.
func writeSVG(w io.Writer, c *vgsvg.Canvas, title, description string) error {
	var drawn bytes.Buffer
	if _, err := c.WriteTo(&drawn); err != nil {
		return err
	}
	start := svgStart.FindIndex(drawn.Bytes())
	head := fmt.Sprintf("%s\n\trole=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>",
		drawn.Bytes()[start[0]:start[1]], html.EscapeString(title), html.EscapeString(description))
	rest := svgText.ReplaceAllStringFunc(drawn.String()[start[1]+1:], func(s string) string {
		m := svgText.FindStringSubmatch(s)
		size, _ := strconv.ParseFloat(m[2], 64)
		width := text(light.ink, vg.Length(size), strings.Contains(m[1], "font-weight:bold")).Width(html.UnescapeString(m[3]))
		return fmt.Sprintf(`transform="scale(1, -1)" textLength="%.1f" lengthAdjust="spacingAndGlyphs" style="font-family:%s%s">%s<`,
			width.Points(), fontFamily, m[1], m[3])
	})
	_, err := io.WriteString(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"+head+rest)
	return err
}
