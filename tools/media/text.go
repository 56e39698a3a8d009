package media

import (
	"image"
	"image/color"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/image/draw"
	"golang.org/x/image/font"
	"golang.org/x/image/font/basicfont"
	"golang.org/x/image/math/fixed"
)

// Size of the font in font pixels.
const (
	charWidth  = 7
	lineHeight = 15
	ascent     = 11
)

// columns returns the number of characters that fit into a line of area.
func columns(area image.Rectangle, scale int) int {
	return max(1, area.Dx()/(charWidth*scale))
}

// wrap breaks text into at most lines lines of at most width characters, at spaces
// where possible. An ellipsis replaces the rest.
func wrap(text string, width, lines int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		for part := range slices.Chunk(visible(word), width) {
			switch {
			case line == "":
				line = string(part)
			case utf8.RuneCountInString(line)+1+len(part) <= width:
				line += " " + string(part)
			default:
				out = append(out, line)
				line = string(part)
			}
		}
	}
	if line != "" {
		out = append(out, line)
	}
	if len(out) > lines {
		out = out[:max(lines, 1)]
		last := []rune(out[len(out)-1])
		out[len(out)-1] = string(last[:min(len(last), max(0, width-3))]) + "..."
	}
	return out
}

// visible returns the runes of a word that have a width.
func visible(word string) []rune {
	var out []rune
	for _, r := range word {
		if unicode.IsPrint(r) && !unicode.Is(unicode.Mn, r) {
			out = append(out, r)
		}
	}
	return out
}

// write draws lines from the top of area. A character that the font lacks
// becomes its replacement sign. Enlarging by whole pixels keeps the edges sharp
// and the bytes the same on every machine.
func write(dst *image.RGBA, area image.Rectangle, lines []string, scale int, ink color.Color) {
	within, src := dst.SubImage(area).(draw.Image), image.NewUniform(ink)
	for i, line := range lines {
		mask := image.NewAlpha(image.Rect(0, 0, len([]rune(line))*charWidth, lineHeight))
		d := font.Drawer{Dst: mask, Src: image.Opaque, Face: basicfont.Face7x13, Dot: fixed.P(0, ascent)}
		d.DrawString(line)
		at := area.Min.Add(image.Pt(0, i*lineHeight*scale))
		to := image.Rectangle{Min: at, Max: at.Add(mask.Rect.Max.Mul(scale))}
		draw.NearestNeighbor.Scale(within, to, src, mask.Rect, draw.Over, &draw.Options{SrcMask: mask})
	}
}
