package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// TestMain lets the test's own program be the upstream and the yardstick, as the
// benchmark's is.
func TestMain(m *testing.M) {
	if !command(os.Args[1:]) {
		os.Exit(program.Run(m))
	}
}

func TestQuantile(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[99-i] = float64(i + 1)
	}
	for _, tc := range []struct {
		values  []float64
		q, want float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0.99, 7},
		{[]float64{3, 1, 2}, 0.5, 2},
		{hundred, 0.5, 51},
		{hundred, 0.99, 100},
	} {
		if got := quantile(tc.values, tc.q); got != tc.want {
			t.Errorf("the quantile %g of %d values is %g, want %g", tc.q, len(tc.values), got, tc.want)
		}
	}
}

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   spread
	}{
		{nil, spread{}},
		{[]float64{4}, spread{4, 4, 4, 1}},
		{[]float64{3, 1, 2}, spread{2, 1, 3, 3}},
		{[]float64{4, 1, 3, 2}, spread{2.5, 1, 4, 4}},
	} {
		if diff := cmp.Diff(tc.want, spreadOf(tc.values)); diff != "" {
			t.Errorf("%v: %s", tc.values, diff)
		}
	}
}

// A ratio compares the lanes of one round, and the table has the median of the ratios,
// which is not the ratio of the medians.
func TestLineOfTheTable(t *testing.T) {
	round := func(proxy, ours float64) map[string]figures {
		return map[string]figures{"direct": {P50: 10, Calls: 1}, "proxy": {P50: proxy, Calls: 1}, "constant": {P50: ours, Calls: 1}}
	}
	good := results{Rounds: []map[string]figures{round(100, 50), round(200, 300), round(400, 240)}}
	bad := results{Rounds: []map[string]figures{{"constant": {Errors: 2, Fault: "a | b"}}}}
	lost := results{Rounds: []map[string]figures{{"proxy": {P50: 4, Errors: 3}, "constant": {P50: 2}}}}
	ratio := row{title: "calls", lane: "constant", base: "proxy", figure: p50, goal: "≤ 1"}
	alone := row{title: "size", lane: "constant", figure: figure{"size", megabyte, func(f figures) float64 { return f.P50 }}}
	added := row{title: "added", lane: "constant", base: "proxy", figure: p50, ratio: func(r map[string]figures) float64 { return r["constant"].P50 - r["proxy"].P50 }}
	for _, tc := range []struct {
		results
		row
		want string
	}{
		{good, ratio, "| calls: median | 10.0 µs | 200 µs | 240 µs | 0.60 [0.50–1.50] | ≤ 1 | 3 | 0 |"},
		{good, alone, "| size | – | – | 240 MB [50.0 MB–300 MB] | – |  | 3 | 0 |"},
		{good, added, "| added: median | 10.0 µs | 200 µs | 240 µs | -50.00 [-160.00–100.00] |  | 3 | 0 |"},
		{bad, ratio, `| calls: median | – | – | failed: a \| b | – | ≤ 1 | 1 | 2 |`},
		{lost, ratio, "| calls: median | – | 4.00 µs | 2.00 µs | 0.50 [0.50–0.50] | ≤ 1 | 1 | 0, proxy 3 |"},
	} {
		if diff := cmp.Diff(tc.want, tc.line(tc.row)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestUnits(t *testing.T) {
	for want, got := range map[string]string{
		"12.3 µs": microseconds(12.34), "1.20 ms": microseconds(1200), "3.00 s": microseconds(3e6), "1.50 ms": milliseconds(1.5),
		"999/s": perSecond(999), "1,234,567/s": perSecond(1234567), "0.0200 %": percents(0.02), "0 KB": kilobyte(0), "46.4 MB": bytesUnit(46.36e6),
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestMarkers(t *testing.T) {
	document := "# By hand\n\n" + beginMark + "old\n" + endMark + "\nalso by hand\n"
	once, err := between([]byte(document), []byte("new\n"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.ReplaceAll(document, "old\n", "new\n"), string(once)); diff != "" {
		t.Error(diff)
	}
	back, err := between(once, []byte("old\n"))
	if err != nil || string(back) != document {
		t.Errorf("replaced again: %q, %v", back, err)
	}
	for _, broken := range []string{"", beginMark, endMark, endMark + beginMark} {
		if _, err := between([]byte(broken), nil); !errors.Is(err, errMarks) {
			t.Errorf("%q: %v, want %v", broken, err, errMarks)
		}
	}
}

// The document that is published has the markers.
func TestDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/evidence/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := between(text, nil); err != nil {
		t.Error(err)
	}
}

func TestScale(t *testing.T) {
	linear, logarithmic := scale(0, 10, 270, 40, false), scale(1, 1000, 0, 300, true)
	for _, tc := range []struct{ got, want float64 }{
		{linear(0), 270}, {linear(5), 155}, {linear(10), 40}, {logarithmic(1), 0}, {logarithmic(10), 100}, {logarithmic(1000), 300},
		{roundStep(0), 1}, {roundStep(0.3), 0.5}, {roundStep(7), 10}, {roundStep(20), 20}, {roundStep(21), 50},
	} {
		if math.Abs(tc.got-tc.want) > 1e-9 {
			t.Errorf("got %g, want %g", tc.got, tc.want)
		}
	}
}

// Every curve is drawn as well-formed XML with a point for each size of each line.
func TestPlots(t *testing.T) {
	for _, c := range curves {
		round, points := map[string]figures{}, 0
		for _, l := range c.workload().lanes {
			points++
			round[l.name] = figures{Calls: 1, P50: 100 + float64(points)}
		}
		if points != len(round) || points < len(c.sizes) {
			t.Errorf("%s: %d names of %d points", c.file, len(round), points)
		}
		var text bytes.Buffer
		if err := draw(&text, c, results{Rounds: []map[string]figures{round, round}}); err != nil {
			t.Fatal(err)
		}
		if got := circles(t, text.Bytes()); got != points {
			t.Errorf("%s has %d points, want %d", c.file, got, points)
		}
	}
}

// circles reads a drawing to its end and returns the number of its circles.
func circles(t *testing.T, text []byte) (n int) {
	t.Helper()
	if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
		t.Errorf("a coordinate is no number:\n%s", text)
	}
	d := xml.NewDecoder(bytes.NewReader(text))
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "circle" {
			n++
		}
	}
}

// Names tell workloads, plots and lanes apart, and every row names lanes that are
// measured.
func TestWorkloads(t *testing.T) {
	names := map[string]bool{}
	all := slices.Clone(workloads)
	for _, c := range curves {
		all = append(all, c.workload())
	}
	for _, w := range all {
		lanes := map[string]bool{}
		for _, l := range w.lanes {
			if lanes[l.name] {
				t.Errorf("%s: two lanes %s", w.name, l.name)
			}
			lanes[l.name] = true
		}
		if names[w.name] {
			t.Errorf("two workloads %s", w.name)
		}
		names[w.name] = true
		for _, r := range w.rows {
			if !lanes[r.lane] || r.base != "" && !lanes[r.base] {
				t.Errorf("%s: row %q names lanes %q and %q", w.name, r.title, r.lane, r.base)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	for _, args := range []string{"-rounds=0", "-duration=0s", "-o=yaml", "word", "-only=("} {
		if _, err := parse([]string{args}, io.Discard); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
	for args, writes := range map[string]bool{"-rounds=2": true, "-quick": false, "-only=64": false, "-write=false": false} {
		if o, err := parse([]string{args}, io.Discard); err != nil || o.write != writes {
			t.Errorf("%s: writes is %t, want %t; %v", args, o.write, writes, err)
		}
	}
}

func TestNothingMatches(t *testing.T) {
	parts.Long(t, "starts programs")
	err := run(t.Context(), []string{"-only=nothing", "-toolgate", program.Toolgate(t), "-scratch", t.TempDir()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "64 clients, ") {
		t.Errorf("%v, want the names", err)
	}
}

// A tiny run with real processes: the figures are there, no call fails, and the
// document is written.
func TestRun(t *testing.T) {
	parts.Long(t, "starts programs")
	docs := t.TempDir()
	if err := os.WriteFile(filepath.Join(docs, "performance.md"), []byte(beginMark+endMark), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options{rounds: 1, duration: 30 * time.Millisecond, only: regexp.MustCompile("^(1 client|500 calls.*|start|stdio, 16.*|plot of result)$"),
		output: "table", write: true, docs: docs, scratch: t.TempDir(), toolgate: program.Toolgate(t)}
	m, err := describe(o.toolgate)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	all, plotted := b.all(io.Discard)
	for _, x := range all {
		for _, l := range x.lanes {
			f := x.Rounds[0][l.name]
			if l.via != reverse && (f.Calls == 0 || f.Errors > 0) {
				t.Errorf("%s, %s: %d calls, %d errors: %s", x.name, l.name, f.Calls, f.Errors, f.Fault)
			}
		}
	}
	var table bytes.Buffer
	report(&table, m, o, all, plotted)
	if err := publish(io.Discard, o, m, all, table.Bytes()); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(filepath.Join(docs, "performance.md"))
	if err != nil || string(written) != beginMark+table.String()+endMark {
		t.Errorf("%v\n%s", err, written)
	}
	if plot, err := os.ReadFile(filepath.Join(docs, "performance", "result.svg")); err != nil || circles(t, plot) < 5 {
		t.Errorf("the plot has too few points: %v", err)
	}
}

// Ended tickets are rows of a state that a toolgate then starts with.
func TestTickets(t *testing.T) {
	parts.Long(t, "starts programs")
	b, err := newBench(t.Context(), options{scratch: t.TempDir(), toolgate: program.Toolgate(t), duration: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	if f := closed(1, holds)(b, lane{site: site{tickets: 100}, via: gate}); f.Errors > 0 {
		t.Errorf("figures %+v", f)
	}
	state := filepath.Join(b.sites[site{tickets: 100}].peers[gate].dir, "state", "state.db")
	db, err := store.Open(t.Context(), state, store.Migrations())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var denied int
	if err := db.Read.QueryRow(`SELECT count(*) FROM approvals WHERE state = 'denied'`).Scan(&denied); err != nil || denied != 100 {
		t.Errorf("%d tickets, %v", denied, err)
	}
}

// A peer that ends while it is measured is an error of its row.
func TestPeerThatEnds(t *testing.T) {
	o := options{rounds: 1, duration: 10 * time.Millisecond, scratch: t.TempDir(), toolgate: "/bin/false"}
	b, err := newBench(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	if f := closed(1, echoes)(b, constant); f.Errors == 0 || !strings.Contains(f.Fault, "has ended") {
		t.Errorf("figures %+v", f)
	}
}
