package media

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"math"

	"golang.org/x/image/vector"
)

// A scene is a drawing: filled boxes, lines and texts, in the order in which they are
// drawn. It is written as PNG or as SVG, in which texts stay texts.
type scene struct {
	size   image.Point
	shapes []shape
}

type shape struct {
	area  image.Rectangle // of a box or a text; of a line, its ends
	kind  kind
	lines []string // of a text
	scale int      // of a text: picture pixels per font pixel
	ink   color.RGBA
}

type kind int

const (
	box kind = iota
	line
	words
)

func (s *scene) box(area image.Rectangle, ink color.RGBA) {
	s.shapes = append(s.shapes, shape{area: area, kind: box, ink: ink})
}

func (s *scene) line(from, to image.Point, ink color.RGBA) {
	s.shapes = append(s.shapes, shape{area: image.Rectangle{Min: from, Max: to}, kind: line, ink: ink})
}

// text writes text into area, at most as many lines as it has room for.
func (s *scene) text(area image.Rectangle, text string, scale int, ink color.RGBA) {
	lines := wrap(text, columns(area, scale), max(1, area.Dy()/(lineHeight*scale)))
	s.shapes = append(s.shapes, shape{area: area, kind: words, lines: lines, scale: scale, ink: ink})
}

// centred writes text on one line in the middle of area.
func (s *scene) centred(area image.Rectangle, text string, scale int, ink color.RGBA) {
	lines := wrap(text, columns(area, scale), 1)
	if len(lines) == 0 {
		return
	}
	size := image.Pt(len([]rune(lines[0]))*charWidth, lineHeight).Mul(scale)
	at := area.Min.Add(area.Size().Sub(size).Div(2))
	s.shapes = append(s.shapes, shape{area: image.Rectangle{Min: at, Max: at.Add(size)}, kind: words, lines: lines, scale: scale, ink: ink})
}

func (s *scene) png() ([]byte, error) {
	img := image.NewRGBA(image.Rectangle{Max: s.size})
	for _, sh := range s.shapes {
		switch sh.kind {
		case box:
			draw.Draw(img, sh.area, image.NewUniform(sh.ink), image.Point{}, draw.Src)
		case line:
			stroke(img, sh.area.Min, sh.area.Max, sh.ink)
		case words:
			write(img, sh.area, sh.lines, sh.scale, sh.ink)
		}
	}
	var b bytes.Buffer
	err := png.Encode(&b, img)
	return b.Bytes(), err
}

// stroke draws a line that is two pixels wide.
func stroke(img *image.RGBA, from, to image.Point, ink color.RGBA) {
	dx, dy := float64(to.X-from.X), float64(to.Y-from.Y)
	length := math.Hypot(dx, dy)
	if length == 0 {
		return
	}
	x, y := float32(-dy/length), float32(dx/length) // across the line
	r := vector.NewRasterizer(img.Rect.Dx(), img.Rect.Dy())
	r.MoveTo(float32(from.X)+x, float32(from.Y)+y)
	r.LineTo(float32(to.X)+x, float32(to.Y)+y)
	r.LineTo(float32(to.X)-x, float32(to.Y)-y)
	r.LineTo(float32(from.X)-x, float32(from.Y)-y)
	r.ClosePath()
	r.Draw(img, img.Rect, image.NewUniform(ink), image.Point{})
}

// svg writes elements with numbers and colours that toolgate chose. Only texts come from
// the prompt, and they are escaped.
func (s *scene) svg() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="monospace">`+"\n", s.size.X, s.size.Y)
	for _, sh := range s.shapes {
		ink := fmt.Sprintf("#%02x%02x%02x", sh.ink.R, sh.ink.G, sh.ink.B)
		switch sh.kind {
		case box:
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/>`+"\n", sh.area.Min.X, sh.area.Min.Y, sh.area.Dx(), sh.area.Dy(), ink)
		case line:
			fmt.Fprintf(&b, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/>`+"\n", sh.area.Min.X, sh.area.Min.Y, sh.area.Max.X, sh.area.Max.Y, ink)
		case words:
			if err := sh.svgText(&b, ink); err != nil {
				return nil, err
			}
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes(), nil
}

// fontSize is the size of a monospace font in SVG that has the width of the font in PNG.
const fontSize = 11

func (sh shape) svgText(b *bytes.Buffer, ink string) error {
	for i, text := range sh.lines {
		y := sh.area.Min.Y + (i*lineHeight+ascent)*sh.scale
		fmt.Fprintf(b, `<text x="%d" y="%d" font-size="%d" fill="%s">`, sh.area.Min.X, y, fontSize*sh.scale, ink)
		if err := xml.EscapeText(b, []byte(text)); err != nil {
			return err
		}
		b.WriteString("</text>\n")
	}
	return nil
}
