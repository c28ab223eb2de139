// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gonum.org/v1/plot/vg"

	"github.com/retrip/retrip/sim"
)

// picture is the part of an SVG that tests inspect.
type picture struct {
	title, desc   string
	width, height float64
	texts         []box
	colors        map[string]bool // of the texts
	fonts         map[string]bool
}

// box is the bounding box of a text in the widest font that a renderer may take;
// y grows upwards.
type box struct {
	text                     string
	x                        float64
	anchor                   string
	bold                     bool
	left, right, low, height float64
}

// place sets the text, and how far it may reach to the left and right of x.
func (b *box) place(s string) {
	b.text += s
	width := roomy(text(light.ink, vg.Length(b.height/lineShare), b.bold), b.text).Points()
	switch b.anchor {
	case "start":
		b.left, b.right = b.x, b.x+width
	case "middle":
		b.left, b.right = b.x-width/2, b.x+width/2
	case "end":
		b.left, b.right = b.x-width, b.x
	default:
		panic("text-anchor is " + b.anchor)
	}
}

// lineShare is the part of a line that most letters fill.
const lineShare = 0.8

func readPicture(t *testing.T, data []byte) picture {
	t.Helper()
	p := picture{colors: map[string]bool{}, fonts: map[string]bool{}}
	d := xml.NewDecoder(bytes.NewReader(data))
	var inside string
	for {
		token, err := d.Token()
		if err == io.EOF {
			return p
		}
		require.NoError(t, err)
		switch e := token.(type) {
		case xml.StartElement:
			inside = e.Name.Local
			attr := map[string]string{}
			for _, a := range e.Attr {
				attr[a.Name.Local] = a.Value
			}
			number := func(name string) float64 {
				x, err := strconv.ParseFloat(strings.TrimSuffix(attr[name], "pt"), 64)
				require.NoError(t, err, "%s of %s", name, inside)
				return x
			}
			switch inside {
			case "svg":
				p.width, p.height = number("width"), number("height")
				assert.Equal(t, "img", attr["role"])
			case "text":
				b := box{x: number("x"), anchor: attr["text-anchor"], low: -number("y")}
				for style := range strings.SplitSeq(attr["style"], ";") {
					name, value, _ := strings.Cut(style, ":")
					switch name {
					case "font-size":
						b.height, err = strconv.ParseFloat(strings.TrimSuffix(value, "px"), 64)
						require.NoError(t, err)
					case "fill":
						p.colors[value] = true
					case "font-weight":
						b.bold = value == "bold"
					case "font-family":
						p.fonts[value] = true
					}
				}
				b.height *= lineShare
				p.texts = append(p.texts, b)
			}
		case xml.CharData:
			switch inside {
			case "title":
				p.title += string(e)
			case "desc":
				p.desc += string(e)
			case "text":
				p.texts[len(p.texts)-1].place(string(e))
			}
		case xml.EndElement:
			inside = ""
		}
	}
}

// pictures lists all kinds of pictures, each by the arguments that draw it.
var pictures = []string{
	"compare -plot load -runs 1 -policy no-retries,no-budget,finagle,envoy,envoy-budget,polly,aws-standard,aws-2026,bucket-10,grpc,sre,retrip",
	"compare -plot goodput -runs 1", "compare -plot waits -runs 1", "overload -runs 1",
	"storm -crowd herd", "storm -plot load", "storm -crowd herd -plot waits",
	"faults -horizon 5s", "faults -horizon 5s -plot attempts",
	"contention -trials 20", "contention -trials 20 -plot time", "contention -trials 1 -clients 100 -plot when",
	"stadium -players 100000 -capacity 32000",
	"map -horizon 80s -fleets 10,100,1000,3000,10000 -loads 0.5,0.7 -policy no-retries,no-budget,retrip",
	"triggers -horizon 80s -runs 1 -lengths 1s,2s -per-client 7,0.7 -loads 0.7,0.8",
	"triggers -horizon 80s -runs 1 -lengths 1s,2s -per-client 0.7 -loads 0.5,0.6,0.7,0.8 -policy no-budget,retrip",
	"queues -horizon 80s -runs 1 -queues 100,200,250,300,350,400,500,1000 -loads 0.5,0.7",
	"queues -horizon 80s -runs 1 -timeouts 300ms,1s,2s -loads 0.5,0.7 -policy no-budget",
	"hysteresis -horizon 70s -loads 0.3,0.7,1.2 -policy no-budget,retrip",
	"measured -in " + measuredFile,
}

var reports = map[string]*report{}

// reportOf returns the report of a command, which runs only once.
func reportOf(t *testing.T, args string) *report {
	t.Helper()
	if r := reports[args]; r != nil {
		return r
	}
	fields := strings.Fields(args)
	i := slices.IndexFunc(commands, func(c command) bool { return c.name == fields[0] })
	require.GreaterOrEqual(t, i, 0, args)
	f := newFlags(fields[0])
	work := commands[i].setup(f)
	require.NoError(t, f.parse(fields[1:]))
	r, err := work(t.Context(), func(float64) {})
	require.NoError(t, err)
	reports[args] = r
	return r
}

// Each picture states its finding in a title that differs from its axis labels.
// Its texts stay inside the picture, don't overlap, and have enough contrast.
func TestPictures(t *testing.T) {
	for _, args := range pictures {
		for page, theme := range map[string]*theme{"light": light, "dark": dark} {
			f, err := reportOf(t, args).draw(theme)
			require.NoError(t, err)
			var data bytes.Buffer
			require.NoError(t, f.write(&data, ".svg"))
			p := readPicture(t, data.Bytes())
			assert.Greater(t, len(p.title), 20, args)
			assert.Greater(t, len(p.desc), 40, args)
			assert.True(t, strings.HasPrefix(p.title, p.texts[0].text), "the title is the first text: %s", args)
			for i, a := range p.texts {
				assert.True(t, a.left >= 0 && a.right <= p.width && a.low >= 0 && a.low+a.height <= p.height, "%s: %q is inside", args, a.text)
				assert.False(t, strings.HasPrefix(a.text, "%"), "%s: a line begins with %q", args, a.text)
				for _, b := range p.texts[i+1:] {
					over := min(a.right, b.right) > max(a.left, b.left) && min(a.low+a.height, b.low+b.height) > max(a.low, b.low)
					assert.False(t, over, "%s: %q over %q", args, a.text, b.text)
				}
			}
			for _, name := range []string{"start", "middle", "end"} { // of titles, and of labels below and beside an axis
				assert.True(t, slices.ContainsFunc(p.texts, func(b box) bool { return b.anchor == name }), "%s: a text is aligned by its %s", args, name)
			}
			for c := range p.colors {
				if strings.Contains("map triggers queues", strings.Fields(args)[0]) && (c == hex(inkOn(rgb(0xffffff))) || c == hex(inkOn(rgb(0)))) {
					continue // on squares: TestSquareColors
				}
				assert.GreaterOrEqual(t, contrast(parseHex(t, c), theme.paper), 4.5, "%s, %s: text of %s", args, page, c)
			}
			require.Len(t, p.fonts, 1, args)
			for family := range p.fonts {
				assert.True(t, strings.HasSuffix(family, ",sans-serif"), family)
			}
		}
	}
}

func hex(c color.NRGBA) string { return fmt.Sprintf("#%02X%02X%02X", c.R, c.G, c.B) }

func parseHex(t *testing.T, s string) color.NRGBA {
	t.Helper()
	x, err := strconv.ParseUint(strings.TrimPrefix(s, "#"), 16, 32)
	require.NoError(t, err, "a color: %s", s)
	return rgb(uint32(x))
}

// blindTo returns c as seen by people without red or green cones (Viénot,
// Brettel and Mollon 1999).
func blindTo(c color.NRGBA, red bool) color.NRGBA {
	linear := func(v uint8) float64 { return math.Pow(float64(v)/255, 2.2) }
	r, g, b := linear(c.R), linear(c.G), linear(c.B)
	l, m, s := 17.8824*r+43.5161*g+4.11935*b, 3.45565*r+27.1554*g+3.86714*b, 0.0299566*r+0.184309*g+1.46709*b
	if red {
		l = 2.02344*m - 2.52581*s
	} else {
		m = 0.494207*l + 1.24827*s
	}
	part := func(x float64) uint8 { return uint8(255 * math.Pow(min(max(x, 0), 1), 1/2.2)) }
	return color.NRGBA{
		part(0.0809444479*l - 0.130504409*m + 0.116721066*s),
		part(-0.0102485335*l + 0.0540193266*m - 0.113614708*s),
		part(-0.000365296938*l - 0.00412161469*m + 0.693511405*s), 0xff,
	}
}

func apart(a, b color.NRGBA) float64 {
	d := func(x, y uint8) float64 { return (float64(x) - float64(y)) * (float64(x) - float64(y)) }
	return math.Sqrt(d(a.R, b.R) + d(a.G, b.G) + d(a.B, b.B))
}

// Lines stand out from the background and from each other, for color-blind
// readers too.
func TestThemes(t *testing.T) {
	for name, theme := range map[string]*theme{"light": light, "dark": dark} {
		for _, c := range []color.NRGBA{theme.accent, theme.second, theme.ink, theme.muted} {
			assert.GreaterOrEqual(t, contrast(c, theme.paper), 3.0, "%s: %v", name, c)
			assert.GreaterOrEqual(t, contrast(c, theme.shade), 2.9, "%s: %v in the shade", name, c)
		}
		lines := []color.NRGBA{theme.accent, theme.second, theme.context, theme.shade}
		for i, a := range lines {
			for _, b := range lines[i+1:] {
				for _, red := range []bool{true, false} {
					assert.Greater(t, apart(blindTo(a, red), blindTo(b, red)), 40.0, "%s: %v and %v", name, a, b)
				}
			}
		}
	}
	// The distance measure treats colors as alike that people without red cones
	// confuse.
	assert.Less(t, apart(blindTo(rgb(0xd53e2a), false), blindTo(rgb(0x6b7a00), false)), 40.0)
}

// The squares of a map get darker with time, never is the darkest, and the
// numbers in them are legible.
func TestSquareColors(t *testing.T) {
	before := 2.0
	for _, s := range []float64{0, 2, 3, 5, 10, 20, 40, 59} {
		c := squareColor(s)
		if s > 1 {
			assert.Less(t, luminance(c), before, "%v s", s)
		}
		before = luminance(c)
		assert.GreaterOrEqual(t, contrast(inkOn(c), c), 4.5, "%v s", s)
	}
	never := squareColor(-1)
	assert.Less(t, luminance(never), before)
	assert.GreaterOrEqual(t, contrast(inkOn(never), never), 4.5)
	for _, red := range []bool{true, false} {
		assert.Greater(t, apart(blindTo(never, red), blindTo(squareColor(1000), red)), 60.0)
	}
}

// A picture defines its "never", and an outlier doesn't flatten the other
// lines.
func TestPictureWords(t *testing.T) {
	of := func(args string) picture {
		file := filepath.Join(t.TempDir(), "plot.svg")
		code, _, errs := call(t, append(strings.Fields(args), "-o", file)...)
		require.Zero(t, code, errs)
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		return readPicture(t, data)
	}
	p := of("compare -runs 1 -policy no-budget,retrip")
	assert.Equal(t, "80\u00a0s after the brownout the backend has not recovered with no-budget", p.title)
	assert.Contains(t, p.desc, "no-budget: never recovers. retrip: recovers in 3 s.")
	assert.Contains(t, p.desc, "Never: not within 80\u00a0s")
	assert.Contains(t, of("map -horizon 80s -fleets 10 -loads 0.7").desc, "Never: not within 40\u00a0s")
	p = of("contention -trials 20 -plot time")
	assert.Regexp(t, `no-jitter: goes up to 10\d\.`, p.desc)
	for _, text := range p.texts {
		if x, err := strconv.Atoi(text.text); err == nil && x != 50 && x != 100 && x != 150 && x != 200 {
			assert.LessOrEqual(t, x, 15, "on the axis of seconds")
		}
	}
	assert.Equal(t, "With none of these policies the backend has recovered 80\u00a0s after the brownout",
		recoveryFinding(sim.Overload(), [][]*sim.Result{{{Recovery: sim.Never}}, {{Recovery: sim.Never}}}))
	assert.Equal(t, "With all of these policies the backend recovers: b takes longest, 7 s",
		recoveryFinding(sim.Overload(), [][]*sim.Result{{{Policy: "a"}}, {{Policy: "b", Recovery: 7 * time.Second}}}))
}

// On a narrow terminal no output is wider than the terminal, and each line of a
// chart stands alone, with its name.
func TestNarrowTerminal(t *testing.T) {
	for _, args := range pictures {
		r := reportOf(t, args)
		for _, columns := range []int{40, 80} {
			var out bytes.Buffer
			r.print(&out, columns)
			for row := range strings.SplitSeq(out.String(), "\n") {
				if columns == 40 || strings.ContainsAny(row, string(blocks[1:])) {
					assert.LessOrEqual(t, utf8.RuneCountInString(row), columns, "%s: %q", args, row)
				}
			}
			for _, l := range r.lines {
				if len(l.y) < 2 {
					continue
				}
				assert.Regexp(t, `(?m)^`+l.name+` +at most [0-9]`, out.String(), args)
			}
		}
	}
}

// A chart shows a peak of a single point, and shows zero as blank.
func TestChart(t *testing.T) {
	l := line{name: "peak"}
	for i := range 1000 {
		l.add(float64(i), 0)
	}
	l.y[777] = 12
	r := &report{lines: []line{l}, unit: "things"}
	rows := r.chart(40)
	assert.Equal(t, "things over 0 to 999 s; all from 0 to 12:", strings.Join(rows[:len(rows)-3], " "))
	assert.Equal(t, strings.Repeat(" ", 31)+"█", rows[len(rows)-2])
	assert.Equal(t, strings.Repeat(" ", 31)+"█", rows[len(rows)-1])
	assert.Nil(t, (&report{lines: []line{{name: "none"}}}).chart(40))
}
