package main

import (
	_ "embed"
	"fmt"
	"io"
	"math"
	"strings"
	"text/template"
)

//go:embed plot.svg
var plotText string

var plotTemplate = template.Must(template.New("plot").Parse(plotText))

// The frame of a plot, in its coordinates.
const left, right, top, bottom = 70.0, 620.0, 40.0, 270.0

// A plot is what the template shows.
type plot struct {
	Title, Axis string
	X, Y        []tick
	Lines       []plotLine
}

type tick struct {
	At   float64
	Text string
}

type plotLine struct {
	Name, Class, Path string
	LegendX           float64
	Points            []plotPoint
}

// A plotPoint is a median with its lowest and highest round.
type plotPoint struct{ X, Y, Low, High float64 }

// draw writes the plot of a curve: the median time of a call for every size.
func draw(w io.Writer, c curve, r results) error {
	highest, lowest := 0.0, math.Inf(1)
	lines := map[via][]spread{}
	var order []via
	for _, n := range c.sizes {
		for _, l := range c.lanes(n) {
			s := spreadOf(r.of(pointName(l.via, n), p50))
			if lines[l.via] == nil {
				order = append(order, l.via)
			}
			lines[l.via] = append(lines[l.via], s)
			highest, lowest = max(highest, s.High), min(lowest, s.Low)
		}
	}
	x := scale(float64(c.sizes[0]), float64(c.sizes[len(c.sizes)-1]), left, right-40, true)
	var y func(float64) float64
	p := plot{Title: c.title, Axis: c.axis}
	if c.log {
		low, high := math.Pow(10, math.Floor(math.Log10(lowest))), math.Pow(10, math.Ceil(math.Log10(highest)))
		y = scale(low, high, bottom, top, true)
		for v := low; v <= high*1.01; v *= 10 {
			p.Y = append(p.Y, tick{y(v), microseconds(v)})
		}
	} else {
		step := roundStep(highest / 4)
		high := step * math.Ceil(highest/step)
		y = scale(0, high, bottom, top, false)
		for v := 0.0; v <= high*1.01; v += step {
			p.Y = append(p.Y, tick{y(v), microseconds(v)})
		}
	}
	for _, n := range c.sizes {
		p.X = append(p.X, tick{x(float64(n)), thousands(float64(n))})
	}
	for _, v := range order {
		p.Lines = append(p.Lines, lineOf(v, c.sizes, lines[v], x, y))
	}
	return plotTemplate.Execute(w, p)
}

// lineOf is the line of one kind of peer.
func lineOf(v via, sizes []int, values []spread, x, y func(float64) float64) plotLine {
	line := plotLine{Name: string(v), Class: "toolgate", LegendX: 540}
	if v == reverse {
		line.Class, line.LegendX = "proxy", 400
	}
	var path strings.Builder
	for i, s := range values {
		pt := plotPoint{x(float64(sizes[i])), y(s.Median), y(s.Low), y(s.High)}
		fmt.Fprintf(&path, "%c%.1f %.1f", "ML"[min(i, 1)], pt.X, pt.Y) // move to the first, draw to the others
		line.Points = append(line.Points, pt)
	}
	line.Path = path.String()
	return line
}

// scale maps the range from low to high onto a range of coordinates.
func scale(low, high, from, to float64, log bool) func(float64) float64 {
	if log {
		low, high = math.Log10(low), math.Log10(high)
	}
	return func(v float64) float64 {
		if log {
			v = math.Log10(v)
		}
		return math.Round((from+(v-low)/(high-low)*(to-from))*10) / 10
	}
}

// roundStep is the next of 1, 2, 5, 10, … that is at least v.
func roundStep(v float64) float64 {
	if !(v > 0) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 5} {
		if step*power >= v {
			return step * power
		}
	}
	return 10 * power
}
