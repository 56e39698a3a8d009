// Package media is the offline renderer of generate_media. It draws the words of a prompt
// on a card, numbers as a bar chart, and names with arrows as a diagram, in PNG or SVG. It is
// deterministic and uses no model, and every picture says so.
//
//	picture, err := media.Renderer{}.Make(ctx, media.Request{Prompt: "Apples: 3\nPears: 5", Model: "chart-1", Format: "svg"})
package media

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/color"
	"strings"
)

// Provider is the provider that every result names.
const Provider = "deterministic text renderer, no generative model"

// The errors of Make.
var (
	ErrModel  = errors.New("unknown model")
	ErrAspect = errors.New("unknown aspect ratio")
	ErrPrompt = errors.New("bad prompt")
	// ErrFormat is for what is neither png nor svg.
	ErrFormat error = unsuitable("the renderer makes png and svg only")
)

// maxPrompt bounds a prompt, in bytes.
const maxPrompt = 16 << 10

// Request is a picture that is asked for.
type Request struct {
	Prompt string
	Aspect string // width to height; "" = 1:1
	Model  string
	Format string // "" = png
}

// Picture is an image and how it was made.
type Picture struct {
	Data          []byte
	MIME          string
	Width, Height int    // pixels
	SHA256        string // lower-case hex, of Data
	Provider      string
	Model         string
	Cost          float64 // estimate, in US dollars
}

// NewPicture returns a picture with the digest of its data.
func NewPicture(data []byte, mime string, width, height int, provider, model string, cost float64) Picture {
	sum := sha256.Sum256(data)
	return Picture{data, mime, width, height, hex.EncodeToString(sum[:]), provider, model, cost}
}

// style is how a model draws.
type style struct {
	scale  int // picture pixels per font pixel
	margin int
	colors func(prompt string) (paper, ink, frame color.RGBA)
	draw   func(s *scene, area image.Rectangle, prompt string) error // nil = the words of the prompt
}

func light(string) (paper, ink, frame color.RGBA) {
	return color.RGBA{250, 248, 240, 255}, color.RGBA{30, 30, 36, 255}, color.RGBA{180, 172, 150, 255}
}

// styles are the models: card-1 is dark on light; poster-1 is larger, and light on a
// colour that depends on the prompt; chart-1 and diagram-1 draw what the prompt lists.
var styles = map[string]style{
	"card-1":    {scale: 2, margin: 24, colors: light},
	"chart-1":   {margin: 24, colors: light, draw: chart},
	"diagram-1": {margin: 24, colors: light, draw: diagram},
	"poster-1": {scale: 3, margin: 32, colors: func(prompt string) (paper, ink, frame color.RGBA) {
		sum := sha256.Sum256([]byte(prompt))
		dark := color.RGBA{sum[0] / 3, sum[1] / 3, sum[2] / 3, 255}
		return dark, color.RGBA{250, 250, 250, 255}, color.RGBA{128 + sum[3]/2, 128 + sum[4]/2, 128 + sum[5]/2, 255}
	}},
}

// sizes are the pictures' sizes in pixels by aspect ratio.
var sizes = map[string]image.Point{
	"1:1": {512, 512}, "4:3": {640, 480}, "3:4": {480, 640}, "16:9": {640, 360}, "9:16": {360, 640},
}

// Renderer draws. It is safe for concurrent use.
type Renderer struct{}

// Make draws a picture. Equal requests give equal bytes in one build of the program.
// The error is ErrModel, ErrAspect, ErrFormat or ErrPrompt.
func (Renderer) Make(ctx context.Context, q Request) (Picture, error) {
	q.Aspect, q.Format = cmp.Or(q.Aspect, "1:1"), cmp.Or(q.Format, "png")
	_, known := styles[q.Model]
	size, ok := sizes[q.Aspect]
	switch {
	case !known:
		return Picture{}, fmt.Errorf("rendering: %w %.64q", ErrModel, q.Model)
	case !ok:
		return Picture{}, fmt.Errorf("rendering: %w %.64q", ErrAspect, q.Aspect)
	case q.Format != "png" && q.Format != "svg":
		return Picture{}, fmt.Errorf("rendering: %w", ErrFormat)
	case strings.TrimSpace(q.Prompt) == "" || len(q.Prompt) > maxPrompt:
		return Picture{}, fmt.Errorf("rendering: %w: it is empty or longer than %d bytes", ErrPrompt, maxPrompt)
	case ctx.Err() != nil:
		return Picture{}, fmt.Errorf("rendering: %w", ctx.Err())
	}
	drawn, err := compose(size, q.Prompt, q.Model)
	if err != nil {
		return Picture{}, err
	}
	encode, mime := drawn.png, "image/png"
	if q.Format == "svg" {
		encode, mime = drawn.svg, "image/svg+xml"
	}
	data, err := encode()
	if err != nil {
		return Picture{}, fmt.Errorf("rendering: %w", err)
	}
	return NewPicture(data, mime, size.X, size.Y, Provider, q.Model, 0), nil
}

// compose draws paper, frame, what the prompt says, and the label at the foot.
func compose(size image.Point, prompt, model string) (*scene, error) {
	look := styles[model]
	paper, ink, frame := look.colors(prompt)
	s, all := &scene{size: size}, image.Rectangle{Max: size}
	s.box(all, frame)
	s.box(all.Inset(6), paper)
	area := all.Inset(look.margin)
	label := "deterministic rendering of the prompt by " + model + ", not made by a generative model"
	foot := area
	foot.Min.Y = area.Max.Y - len(wrap(label, columns(area, 1), 4))*lineHeight
	s.text(foot, label, 1, frame)
	area.Max.Y = foot.Min.Y - lineHeight
	if look.draw != nil {
		return s, look.draw(s, area, prompt)
	}
	s.text(area, prompt, look.scale, ink)
	return s, nil
}
