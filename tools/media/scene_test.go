package media_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"image"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/tools/media"
)

var update = flag.Bool("update", false, "write the picture of the documents")

const fruit = "Fruit per tree\nApples: 300\nPears: 150\nPlums: 75"

func decode(t *testing.T, r media.Request) image.Image {
	t.Helper()
	p, err := renderer.Make(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(p.Data))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// runs are the lengths of the bars from the top: the accent pixels of a line where bars
// begin.
func runs(img image.Image) (lengths []int) {
	isBar := func(x, y int) bool {
		r, g, b, _ := img.At(x, y).RGBA()
		return r>>8 == 54 && g>>8 == 98 && b>>8 == 160
	}
	inside := false
	for y := range img.Bounds().Dy() {
		n := 0
		for x := range img.Bounds().Dx() {
			if isBar(x, y) {
				n++
			}
		}
		if n > 0 && !inside {
			lengths = append(lengths, n)
		}
		inside = n > 0
	}
	return lengths
}

func TestBarsAreProportional(t *testing.T) {
	for _, aspect := range []string{"1:1", "4:3", "16:9", "9:16"} {
		got := runs(decode(t, media.Request{Prompt: fruit, Aspect: aspect, Model: "chart-1"}))
		if len(got) != 3 || abs(got[0]-2*got[1]) > 4 || abs(got[0]-4*got[2]) > 6 || got[0] < 60 {
			t.Errorf("%s: bars of %v pixels, want 4 to 2 to 1", aspect, got)
		}
	}
	if got := runs(decode(t, media.Request{Prompt: "a: 0; b: 0", Model: "chart-1"})); len(got) != 0 {
		t.Errorf("bars of nothing: %v", got)
	}
}

func abs(n int) int { return max(n, -n) }

// dark counts the pixels of texts in an area.
func dark(img image.Image, area image.Rectangle) (n int) {
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			if r, g, b, _ := img.At(x, y).RGBA(); r>>8 == 30 && g>>8 == 30 && b>>8 == 36 {
				n++
			}
		}
	}
	return n
}

// Texts are where they belong: the title at the top, the labels at the left.
func TestChartHasItsWords(t *testing.T) {
	with := decode(t, media.Request{Prompt: fruit, Model: "chart-1"})
	without := decode(t, media.Request{Prompt: "\u200b: 3", Model: "chart-1"})
	head, labels := image.Rect(24, 24, 130, 54), image.Rect(24, 70, 130, 440)
	if dark(with, head) < 100 || dark(with, labels) < 100 || dark(without, head) > 0 || dark(without, labels) > 0 {
		t.Errorf("%d and %d dark pixels, without texts %d and %d", dark(with, head), dark(with, labels), dark(without, head), dark(without, labels))
	}
}

// An SVG is XML with the words of the prompt, and of elements that draw only.
func TestSVG(t *testing.T) {
	for _, c := range []struct {
		model, prompt string
		words         []string
	}{
		{"card-1", "a red fox", []string{"a red fox"}},
		{"poster-1", `</text><script>alert("1")</script>`, []string{"script"}},
		{"chart-1", fruit, []string{"Fruit per tree", "Apples", "Pears", "300", "75"}},
		{"diagram-1", "Flow\nAgent -> toolgate -> Server\ntoolgate → Trail", []string{"Flow", "Agent", "toolgate", "Server", "Trail"}},
		{"diagram-1", `<script>x</script> -> "><a href='javascript:x'>`, []string{"<script>x</script>"}},
		{"diagram-1", "a -> b -> a", []string{"a", "b"}},
	} {
		p, err := renderer.Make(t.Context(), media.Request{Prompt: c.prompt, Model: c.model, Format: "svg"})
		if err != nil || p.MIME != "image/svg+xml" {
			t.Fatalf("%s: %v", c.prompt, err)
		}
		text := parseSVG(t, p.Data)
		for _, word := range append(c.words, "not made by a") {
			if !strings.Contains(text, word) {
				t.Errorf("%s of %q lacks %q: %q", c.model, c.prompt, word, text)
			}
		}
	}
}

// parseSVG returns the texts of an SVG, and fails for elements and attributes that do more
// than draw.
func parseSVG(t *testing.T, data []byte) string {
	t.Helper()
	var b strings.Builder
	for d := xml.NewDecoder(bytes.NewReader(data)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%v in %s", err, data)
		}
		switch token := token.(type) {
		case xml.StartElement:
			switch token.Name.Local {
			case "svg", "rect", "line", "text":
			default:
				t.Errorf("there is an element %s", token.Name.Local)
			}
			for _, a := range token.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" || a.Name.Local == "style" {
					t.Errorf("there is an attribute %s", a.Name.Local)
				}
			}
		case xml.CharData:
			b.WriteString(string(token) + " ")
		case xml.ProcInst, xml.Directive:
			t.Errorf("there is %v", token)
		}
	}
}

// FuzzSVG: whatever the prompt, an SVG is XML that only draws.
func FuzzSVG(f *testing.F) {
	for _, prompt := range []string{"a: 1; b: 2", "a -> <b>", "]]>&#0;\x00\xff", "<svg onload=x>"} {
		f.Add(prompt)
	}
	f.Fuzz(func(t *testing.T, prompt string) {
		for _, model := range media.Models() {
			if p, err := renderer.Make(t.Context(), media.Request{Prompt: prompt, Model: model, Format: "svg"}); err == nil {
				parseSVG(t, p.Data)
			}
		}
	})
}

// The picture in the documents is what the renderer draws; -update writes it.
func TestPictureOfTheDocuments(t *testing.T) {
	p, err := renderer.Make(t.Context(), media.Request{Prompt: fruit, Aspect: "16:9", Model: "chart-1"})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(corpus.Checkout(t), "docs", "images", "chart.png")
	if *update {
		if err := os.WriteFile(name, p.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(name)
	if err != nil || len(kept) == 0 {
		t.Fatal(err)
	}
	if !bytes.Equal(kept, p.Data) {
		t.Error("docs/images/chart.png is not what the renderer draws: go test ./tools/media -run Documents -update")
	}
}
