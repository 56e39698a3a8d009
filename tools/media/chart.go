package media

import (
	"image"
	"image/color"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// Bounds of what is drawn.
const (
	maxBars  = 24
	maxNodes = 24
)

// unsuitable is why a request cannot be drawn, for the caller to change.
type unsuitable string

func (u unsuitable) Error() string { return string(u) }

// Refused gives the text for the result of the call.
func (u unsuitable) Refused() string { return string(u) }

var (
	ink    = color.RGBA{30, 30, 36, 255}
	accent = color.RGBA{54, 98, 160, 255}
	pale   = color.RGBA{222, 230, 240, 255}
)

type bar struct {
	label, number string
	value         float64
}

var barLine = regexp.MustCompile(`^\s*(\S.*?)\s*[:=]\s*([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*(%?)\s*$`)

// entries splits a prompt at lines and semicolons.
func entries(prompt string) []string {
	return strings.FieldsFunc(prompt, func(r rune) bool { return r == '\n' || r == '\r' || r == ';' })
}

// readChart reads entries LABEL: NUMBER; all others are the title.
func readChart(prompt string) (title string, bars []bar, err error) {
	var other []string
	for _, entry := range entries(prompt) {
		m := barLine.FindStringSubmatch(entry)
		if m == nil {
			other = append(other, entry)
			continue
		}
		value, err := strconv.ParseFloat(m[2], 64)
		if err != nil {
			return "", nil, err
		}
		bars = append(bars, bar{m[1], m[2] + m[3], value})
	}
	if len(bars) == 0 || len(bars) > maxBars {
		return "", nil, unsuitable("a chart needs 1 to " + strconv.Itoa(maxBars) + " lines LABEL: NUMBER, with numbers from 0; other lines are its title")
	}
	return strings.Join(other, " "), bars, nil
}

// chart draws bars from the left, whose lengths are proportional to their numbers.
func chart(s *scene, area image.Rectangle, prompt string) error {
	title, bars, err := readChart(prompt)
	if err != nil {
		return err
	}
	if title != "" {
		head := area
		head.Max.Y = head.Min.Y + 2*lineHeight
		s.text(head, title, 2, ink)
		area.Min.Y = head.Max.Y + lineHeight
	}
	largest := 0.0
	for _, b := range bars {
		largest = max(largest, b.value)
	}
	from, to := area.Min.X+area.Dx()/4, area.Max.X-area.Dx()/6
	for i, b := range bars {
		row := image.Rect(area.Min.X, area.Min.Y+i*area.Dy()/len(bars), area.Max.X, area.Min.Y+(i+1)*area.Dy()/len(bars))
		middle := (row.Min.Y + row.Max.Y) / 2
		half := min(row.Dy()*2/5, 24)
		length := 0
		if largest > 0 {
			length = int(math.Round(b.value / largest * float64(to-from)))
		}
		s.text(image.Rect(row.Min.X, middle-lineHeight/2, from-charWidth, middle+lineHeight), b.label, 1, ink)
		s.box(image.Rect(from, middle-half, from+length, middle+half), accent)
		s.text(image.Rect(from+length+charWidth, middle-lineHeight/2, row.Max.X, middle+lineHeight), b.number, 1, ink)
	}
	s.line(image.Pt(from, area.Min.Y), image.Pt(from, area.Max.Y), ink)
	return nil
}
