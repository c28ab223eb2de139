// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"image/color"
	"math"
)

// squareColor maps a time to a shade of blue, pale to deep by its logarithm, so
// that every reader can order the squares. Never, a negative time, is a
// different color, dark and bold.
func squareColor(seconds float64) color.NRGBA {
	if seconds < 0 {
		return rgb(0x8c2d04)
	}
	stops := []color.NRGBA{rgb(0xe3eef9), rgb(0xb3d3ec), rgb(0x6aaed6), rgb(0x2b7bba)}
	at := math.Log(max(seconds, 1)) / math.Log(60) * float64(len(stops)-1)
	i := min(int(at), len(stops)-2)
	part := min(at-float64(i), 1)
	mix := func(a, b uint8) uint8 { return uint8(float64(a)*(1-part) + float64(b)*part) }
	a, b := stops[i], stops[i+1]
	return color.NRGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 0xff}
}

// inkOn returns the more legible ink on a color.
func inkOn(c color.NRGBA) color.NRGBA {
	black, white := rgb(0x10161d), rgb(0xffffff)
	if contrast(black, c) > contrast(white, c) {
		return black
	}
	return white
}

// contrast returns the WCAG 2 contrast ratio, 1 to 21.
func contrast(a, b color.NRGBA) float64 {
	x, y := luminance(a), luminance(b)
	return (max(x, y) + 0.05) / (min(x, y) + 0.05)
}

func luminance(c color.NRGBA) float64 {
	part := func(v uint8) float64 {
		s := float64(v) / 255
		if s <= 0.04045 {
			return s / 12.92
		}
		return math.Pow((s+0.055)/1.055, 2.4)
	}
	return 0.2126*part(c.R) + 0.7152*part(c.G) + 0.0722*part(c.B)
}
