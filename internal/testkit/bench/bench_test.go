package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
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
	bad := results{Rounds: []map[string]figures{{"constant": {Errors: 2, Fault: "a\tb"}}}}
	lost := results{Rounds: []map[string]figures{{"proxy": {P50: 4, Errors: 3}, "constant": {P50: 2}}}}
	ratio := row{title: "calls", lane: "constant", base: "proxy", figure: p50, goal: "≤ 1"}
	alone := row{title: "size", lane: "constant", figure: figure{"size", megabyte, func(f figures) float64 { return f.P50 }}}
	added := row{title: "added", lane: "constant", base: "proxy", figure: p50, ratio: func(r map[string]figures) float64 { return r["constant"].P50 - r["proxy"].P50 }}
	for _, tc := range []struct {
		results
		row
		want string
	}{
		{good, ratio, "calls: median\t10.0 µs\t200 µs\t240 µs\t0.60 [0.50-1.50]\t≤ 1\t3\t0\t"},
		{good, alone, "size\t-\t-\t240 MB [50.0 MB-300 MB]\t-\t\t3\t0\t"},
		{good, added, "added: median\t10.0 µs\t200 µs\t240 µs\t-50.00 [-160.00-100.00]\t\t3\t0\t"},
		{bad, ratio, "calls: median\t-\t-\tfailed: a b\t-\t≤ 1\t1\t2\t"},
		{lost, ratio, "calls: median\t-\t4.00 µs\t2.00 µs\t0.50 [0.50-0.50]\t≤ 1\t1\t0, proxy 3\t"},
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

// Names tell workloads and lanes apart, and every row names lanes that are
// measured.
func TestWorkloads(t *testing.T) {
	names := map[string]bool{}
	for _, w := range (options{beside: []neighbour{{Name: "one"}, {Name: "two"}}}).workloads() {
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
	if o, err := parse([]string{"-quick", "-only=64"}, io.Discard); err != nil || o.rounds != 2 || !o.only.MatchString("64 clients") {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestNothingMatches(t *testing.T) {
	parts.Long(t, "starts programs")
	err := run(t.Context(), []string{"-only=nothing", "-toolgate", program.Toolgate(t), "-scratch", t.TempDir()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "64 clients, ") {
		t.Errorf("%v, want the names", err)
	}
}

// A tiny run with real processes: the figures are there, and no call fails.
func TestRun(t *testing.T) {
	parts.Long(t, "starts programs")
	o := options{rounds: 1, duration: 30 * time.Millisecond, only: regexp.MustCompile("^(1 client|issuer|500 calls.*|start|stdio, 16.*|5 MB)$"), scratch: t.TempDir(), toolgate: program.Toolgate(t)}
	m, err := describe(o.toolgate)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newBench(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer b.end()
	all := b.all(io.Discard)
	for _, x := range all {
		for _, l := range x.lanes {
			f := x.Rounds[0][l.name]
			if l.via != reverse && (f.Calls == 0 || f.Errors > 0) {
				t.Errorf("%s, %s: %d calls, %d errors: %s", x.name, l.name, f.Calls, f.Errors, f.Fault)
			}
		}
	}
	for _, output := range []string{"table", "json"} {
		var text bytes.Buffer
		o.output = output
		if err := publish(&text, o, m, all); err != nil || !strings.Contains(text.String(), "500 calls per second") {
			t.Errorf("%s: %v\n%s", output, err, text.String())
		}
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
