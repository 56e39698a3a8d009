// Package media is the offline renderer of generate_media: it draws the words of a
// prompt on a card. It is deterministic and uses no model, and every picture says
// so.
package media

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"maps"
	"slices"
	"strings"
)

// Provider is the provider that every result names.
const Provider = "deterministic text renderer, no generative model"

// The errors of Render.
var (
	ErrModel  = errors.New("unknown model")
	ErrAspect = errors.New("unknown aspect ratio")
	ErrPrompt = errors.New("bad prompt")
)

// maxPrompt bounds a prompt, in bytes.
const maxPrompt = 16 << 10

// Picture is a rendered image.
type Picture struct {
	PNG           []byte
	MIME          string
	Width, Height int    // pixels
	SHA256        string // lower-case hex, of PNG
	Model         string
}

// style is how a model draws.
type style struct {
	scale  int // picture pixels per font pixel
	margin int
	colors func(prompt string) (paper, ink, frame color.Color)
}

// styles are the models: card-1 is dark on light; poster-1 is larger, and light on a
// colour that depends on the prompt.
var styles = map[string]style{
	"card-1": {scale: 2, margin: 24, colors: func(string) (paper, ink, frame color.Color) {
		return color.RGBA{250, 248, 240, 255}, color.RGBA{30, 30, 36, 255}, color.RGBA{180, 172, 150, 255}
	}},
	"poster-1": {scale: 3, margin: 32, colors: func(prompt string) (paper, ink, frame color.Color) {
		sum := sha256.Sum256([]byte(prompt))
		dark := color.RGBA{sum[0] / 3, sum[1] / 3, sum[2] / 3, 255}
		return dark, color.RGBA{250, 250, 250, 255}, color.RGBA{128 + sum[3]/2, 128 + sum[4]/2, 128 + sum[5]/2, 255}
	}},
}

// sizes are the pictures' sizes in pixels by aspect ratio.
var sizes = map[string]image.Point{
	"1:1": {512, 512}, "4:3": {640, 480}, "3:4": {480, 640}, "16:9": {640, 360}, "9:16": {360, 640},
}

// Models returns the names of all models, in order.
func Models() []string { return slices.Sorted(maps.Keys(styles)) }

// Renderer draws with a set of models. It is immutable and safe for concurrent use.
type Renderer struct{ models []string }

// New returns a Renderer for models; none means all. An unknown name is an error.
func New(models []string) (*Renderer, error) {
	if len(models) == 0 {
		models = Models()
	}
	for _, m := range models {
		if _, ok := styles[m]; !ok {
			return nil, fmt.Errorf("making renderer: %w %q\nhint: known are %s", ErrModel, m, strings.Join(Models(), ", "))
		}
	}
	return &Renderer{models: slices.Clone(models)}, nil
}

// Render draws prompt with model; aspect "" is 1:1. Equal arguments give equal bytes
// in one build of the program. The error is ErrModel for a model that the Renderer
// does not have, ErrAspect or ErrPrompt.
func (r *Renderer) Render(ctx context.Context, prompt, aspect, model string) (Picture, error) {
	if !slices.Contains(r.models, model) {
		return Picture{}, fmt.Errorf("rendering: %w %.64q", ErrModel, model)
	}
	aspect = cmp.Or(aspect, "1:1")
	size, ok := sizes[aspect]
	if !ok {
		return Picture{}, fmt.Errorf("rendering: %w %.64q", ErrAspect, aspect)
	}
	if strings.TrimSpace(prompt) == "" || len(prompt) > maxPrompt {
		return Picture{}, fmt.Errorf("rendering: %w: it is empty or longer than %d bytes", ErrPrompt, maxPrompt)
	}
	if err := ctx.Err(); err != nil {
		return Picture{}, fmt.Errorf("rendering: %w", err)
	}
	var buf bytes.Buffer
	if err := png.Encode(&buf, compose(size, prompt, model)); err != nil {
		return Picture{}, fmt.Errorf("rendering: %w", err)
	}
	sum := sha256.Sum256(buf.Bytes())
	return Picture{
		PNG: buf.Bytes(), MIME: "image/png", Width: size.X, Height: size.Y,
		SHA256: hex.EncodeToString(sum[:]), Model: model,
	}, nil
}

// compose draws paper, frame, the prompt, and the label at the foot.
func compose(size image.Point, prompt, model string) *image.RGBA {
	s := styles[model]
	paper, ink, frame := s.colors(prompt)
	img := image.NewRGBA(image.Rectangle{Max: size})
	draw.Draw(img, img.Bounds(), image.NewUniform(frame), image.Point{}, draw.Src)
	draw.Draw(img, img.Bounds().Inset(6), image.NewUniform(paper), image.Point{}, draw.Src)
	area := img.Bounds().Inset(s.margin)
	label := wrap("deterministic rendering of the prompt by "+model+", not made by a generative model", columns(area, 1), 4)
	foot := area
	foot.Min.Y = area.Max.Y - len(label)*lineHeight
	write(img, foot, label, 1, frame)
	area.Max.Y = foot.Min.Y - lineHeight
	write(img, area, wrap(prompt, columns(area, s.scale), area.Dy()/(lineHeight*s.scale)), s.scale, ink)
	return img
}
