// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"regexp"

	"gonum.org/v1/plot/font"
	ptext "gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// fontFamily begins with the font used to measure texts. Arial and Helvetica
// have the same widths.
const fontFamily = "'Liberation Sans',Arial,Helvetica,sans-serif"

// room is how much wider than measured a text may be without touching another:
// a system without these fonts takes one that is up to a fifth wider.
const room = 1.25

// roomy returns the width that s may take in any font.
func roomy(style draw.TextStyle, s string) vg.Length { return room * style.Width(s) }

// svgCanvas remembers how each text is aligned, because a renderer with another
// font must align it by itself.
type svgCanvas struct {
	*vgsvg.Canvas

	align   ptext.XAlignment // of the text that is being drawn
	anchors []anchor
}

// anchor is the horizontal position of a text, and which end of the text it is.
type anchor struct {
	x    vg.Length
	name string // as SVG has it
}

func (c *svgCanvas) FillString(face font.Face, pt vg.Point, s string) {
	a := anchor{pt.X - vg.Length(c.align)*face.Width(s), "start"}
	switch c.align {
	case ptext.XCenter:
		a.name = "middle"
	case ptext.XRight:
		a.name = "end"
	}
	c.anchors = append(c.anchors, a)
	c.Canvas.FillString(face, pt, s)
}

// aligner draws texts, and tells a svgCanvas their alignment first.
type aligner struct{ ptext.Plain }

func (h aligner) Draw(c vg.Canvas, s string, style ptext.Style, pt vg.Point) {
	if svg := innermost(c); svg != nil {
		svg.align = style.XAlign
	}
	h.Plain.Draw(c, s, style, pt)
}

// innermost returns the svgCanvas of which c is a part, or nil.
func innermost(c vg.Canvas) *svgCanvas {
	for {
		switch outer := c.(type) {
		case *draw.Canvas:
			c = outer.Canvas
		case draw.Canvas:
			c = outer.Canvas
		case *svgCanvas:
			return outer
		default:
			return nil
		}
	}
}

var (
	svgStart = regexp.MustCompile(`<svg [^>]*`)
	svgText  = regexp.MustCompile(`<text x="[^"]*"( y="[^"]*" transform="scale\(1, -1\)")\s+style="font-family:[^;"]*`)
)

// writeSVG writes the drawing with a title, a description, and fonts that every
// system has.
func writeSVG(w io.Writer, c *svgCanvas, title, description string) error {
	var drawn bytes.Buffer
	if _, err := c.WriteTo(&drawn); err != nil {
		return err
	}
	start := svgStart.FindIndex(drawn.Bytes())
	head := fmt.Sprintf("%s\n\trole=\"img\" aria-labelledby=\"title desc\">\n<title id=\"title\">%s</title>\n<desc id=\"desc\">%s</desc>",
		drawn.Bytes()[start[0]:start[1]], html.EscapeString(title), html.EscapeString(description))
	rest := svgText.ReplaceAllStringFunc(drawn.String()[start[1]+1:], func(s string) string {
		a := c.anchors[0]
		c.anchors = c.anchors[1:]
		return fmt.Sprintf(`<text x="%.6g"%s text-anchor="%s" style="font-family:%s`, a.x.Points(), svgText.FindStringSubmatch(s)[1], a.name, fontFamily)
	})
	_, err := io.WriteString(w, "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"+head+rest)
	return err
}
