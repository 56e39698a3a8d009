package media_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"image/png"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/tools/media"
)

var renderer media.Renderer

func TestEveryModelInEveryShape(t *testing.T) {
	if diff := cmp.Diff([]string{"card-1", "chart-1", "diagram-1", "poster-1"}, media.Models()); diff != "" {
		t.Errorf("models (-want +got):\n%s", diff)
	}
	seen := map[string]string{}
	for _, model := range []string{"card-1", "poster-1"} {
		for aspect, want := range map[string][2]int{
			"": {512, 512}, "1:1": {512, 512}, "4:3": {640, 480}, "3:4": {480, 640}, "16:9": {640, 360}, "9:16": {360, 640},
		} {
			got, err := renderer.Make(t.Context(), media.Request{Prompt: "a red fox", Aspect: aspect, Model: model})
			if err != nil {
				t.Fatal(err)
			}
			img, err := png.Decode(bytes.NewReader(got.Data))
			if err != nil {
				t.Fatal(err)
			}
			if s := img.Bounds().Size(); s.X != want[0] || s.Y != want[1] || got.Width != s.X || got.Height != s.Y {
				t.Errorf("%s %s: %v, reported %dx%d, want %v", model, aspect, s, got.Width, got.Height, want)
			}
			if sum := sha256.Sum256(got.Data); got.SHA256 != hex.EncodeToString(sum[:]) || got.MIME != "image/png" || got.Model != model {
				t.Errorf("%s %s: wrong size, digest or type", model, aspect)
			}
			again, err := renderer.Make(t.Context(), media.Request{Prompt: "a red fox", Aspect: aspect, Model: model})
			if err != nil || !bytes.Equal(again.Data, got.Data) {
				t.Errorf("%s %s: the second picture differs (%v)", model, aspect, err)
			}
			if other := seen[got.SHA256]; other != "" && aspect != "" && !strings.HasSuffix(other, "1:1") && other != model+" " {
				t.Errorf("%s %s looks like %s", model, aspect, other)
			}
			seen[got.SHA256] = model + " " + aspect
		}
	}
}

func TestAnotherPromptIsAnotherPicture(t *testing.T) {
	seen := map[string]bool{}
	for _, prompt := range []string{"a", "b", "a b", strings.Repeat("long ", 500), strings.Repeat("x", 4000), "日本語 🜁", "e\u0301"} {
		got, err := renderer.Make(t.Context(), media.Request{Prompt: prompt, Aspect: "9:16", Model: "card-1"})
		if err != nil {
			t.Fatal(err)
		}
		if seen[got.SHA256] {
			t.Errorf("%.20q looks like another", prompt)
		}
		seen[got.SHA256] = true
	}
}

func TestRenderRefuses(t *testing.T) {
	for _, c := range []struct {
		prompt, aspect, model string
		want                  error
	}{
		{"x", "1:1", "dall-e-9", media.ErrModel},
		{"x", "1:1", "", media.ErrModel},
		{"x", "2:1", "card-1", media.ErrAspect},
		{" \n", "1:1", "card-1", media.ErrPrompt},
		{strings.Repeat("x", 1<<20), "1:1", "card-1", media.ErrPrompt},
	} {
		if got, err := renderer.Make(t.Context(), media.Request{Prompt: c.prompt, Aspect: c.aspect, Model: c.model}); !errors.Is(err, c.want) || got.Data != nil {
			t.Errorf("%.20q %s %s: %v, want %v", c.prompt, c.aspect, c.model, err, c.want)
		}
	}
}

func FuzzRender(f *testing.F) {
	f.Add("a red fox", "1:1", "card-1")
	f.Add("\u0301\u0301 \x00", "9:16", "poster-1")
	f.Fuzz(func(t *testing.T, prompt, aspect, model string) {
		got, err := renderer.Make(t.Context(), media.Request{Prompt: prompt, Aspect: aspect, Model: model})
		if (err == nil) != (len(got.Data) > 0) {
			t.Fatalf("%d bytes and %v", len(got.Data), err)
		}
	})
}

func BenchmarkRender(b *testing.B) {
	for b.Loop() {
		if _, err := renderer.Make(b.Context(), media.Request{Prompt: "a red fox jumps over a lazy dog", Aspect: "16:9", Model: "poster-1"}); err != nil {
			b.Fatal(err)
		}
	}
}
