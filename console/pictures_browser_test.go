package console_test

import (
	"bytes"
	"context"
	"flag"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/policy/approval"
)

var draw = flag.Bool("draw", false, "write the pictures of the documents, with go test -run TestInABrowser/pictures")

const (
	images       = "../docs/images"
	pictureBytes = 150_000
	cellSide     = 16 // pixels of the squares by which pictures are compared
)

// pictures are those of the documents, by their names, and whether the page has to look like them: a call, a
// ticket and a difference are read by how they are laid out. Other pages are held by their elements.
func pictures(t *testing.T, browser context.Context) {
	l, base := stage(t, scenes[0])
	tickets, err := l.tickets.List(t.Context(), approval.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	p := sitting(t, browser, base, desktop)
	if _, err := chromedp.Call(p.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "UTC"}); err != nil {
		t.Fatal(err)
	}
	p.signIn("t-oda", "/console/approvals")
	for _, tc := range []struct {
		name, page string
		height     int64
		compared   bool
	}{
		{"overview", "/console/", 760, false},
		{"matrix", "/console/policy/matrix", 600, false},
		{"held", "/console/approvals/" + tickets[0].ID, 800, true},
		{"call", "/console/calls/dec_1", 800, true},
		{"definition", "/console/tools/payments/transfer", 740, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p.takes(screen{name: tc.name, width: 1100, height: tc.height})
			p.open(tc.page)
			shown, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(images, tc.name+".png")
			if *draw {
				if err := os.WriteFile(file, shown, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			kept, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(kept) > pictureBytes {
				t.Errorf("%s has %d bytes, more than %d", file, len(kept), pictureBytes)
			}
			if tc.compared && os.Getenv("CI") == "true" { // elsewhere, the fonts are others
				alike(t, kept, shown)
			}
		})
	}
}

// alike holds that at most one square in fifty of two pictures of one size has another brightness.
func alike(t *testing.T, kept, shown []byte) {
	t.Helper()
	want, got := cells(t, kept), cells(t, shown)
	if len(got) != len(want) || len(got[0]) != len(want[0]) {
		t.Fatalf("the page has %d × %d squares, the picture %d × %d; -draw makes another one", len(got[0]), len(got), len(want[0]), len(want))
	}
	differ, all := 0, 0
	for y := range want {
		for x, one := range want[y] {
			if all++; max(one-got[y][x], got[y][x]-one) > 24 {
				differ++
			}
		}
	}
	if differ*50 > all {
		t.Errorf("%d of %d squares of the page differ from the picture; -draw makes another one", differ, all)
	}
}

// cells returns the brightness of the squares of a picture, 0 to 255.
func cells(t *testing.T, picture []byte) (rows [][]int) {
	t.Helper()
	decoded, err := png.Decode(bytes.NewReader(picture))
	if err != nil {
		t.Fatal(err)
	}
	for top := 0; top+cellSide <= decoded.Bounds().Dy(); top += cellSide {
		var row []int
		for left := 0; left+cellSide <= decoded.Bounds().Dx(); left += cellSide {
			row = append(row, brightness(decoded, image.Rect(left, top, left+cellSide, top+cellSide)))
		}
		rows = append(rows, row)
	}
	return rows
}

func brightness(of image.Image, area image.Rectangle) int {
	sum := 0
	for y := area.Min.Y; y < area.Max.Y; y++ {
		for x := area.Min.X; x < area.Max.X; x++ {
			r, g, b, _ := of.At(x, y).RGBA()
			sum += int(r+g+b) / 3 >> 8
		}
	}
	return sum / (area.Dx() * area.Dy())
}
