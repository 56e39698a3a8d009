package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// A unit formats figures.
type unit func(float64) string

func microseconds(v float64) string {
	switch {
	case v >= 1e6:
		return significant(v/1e6) + " s"
	case v >= 1e3:
		return significant(v/1e3) + " ms"
	}
	return significant(v) + " µs"
}
func milliseconds(v float64) string { return microseconds(v * 1e3) }
func perSecond(v float64) string    { return thousands(v) + "/s" }
func plain(v float64) string        { return thousands(v) }
func bytesUnit(v float64) string    { return megabyte(v / 1e6) }
func megabyte(v float64) string     { return significant(v) + " MB" }
func kilobyte(v float64) string     { return significant(v) + " KB" }
func percents(v float64) string     { return significant(v) + " %" }

// significant formats v with three digits, or all digits before the point.
func significant(v float64) string {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Sprint(v)
	}
	digits := 2 - int(math.Floor(math.Log10(math.Abs(v))))
	return strconv.FormatFloat(v, 'f', max(digits, 0), 64)
}

// thousands formats v without fraction and with commas.
func thousands(v float64) string {
	text := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// A machine is where and with what a run was made.
type machine struct {
	Day, Processor, System, Go, Toolgate, Commit string
	Cores                                        int
	LoadBefore                                   string // load average of the minute before
}

// describe finds out about the machine. An uncommitted change shows in the commit.
func describe(toolgate string) (machine, error) {
	system, load := kernel()
	m := machine{Day: time.Now().UTC().Format(time.DateOnly), Processor: processor(), System: system, Go: runtime.Version(), Cores: runtime.NumCPU(), LoadBefore: load}
	text, err := exec.Command(toolgate, "version", "-o", "json").Output()
	var version struct{ Go, Version string }
	if err == nil {
		err = json.Unmarshal(text, &version)
	}
	if err != nil {
		return m, fmt.Errorf("asking %s for its version: %w", toolgate, err)
	}
	m.Toolgate = version.Version + ", built with " + version.Go
	commit, err := exec.Command("git", "describe", "--always", "--dirty", "--exclude=*").Output()
	if err != nil {
		commit = []byte("unknown") // not a checkout
	}
	m.Commit = strings.TrimSpace(string(commit))
	return m, nil
}

// results are the rounds of a workload, each with the figures of its lanes.
type results struct {
	Workload string
	Rounds   []map[string]figures
}

// faults returns the number of errors of a lane, and the first of them.
func (r results) faults(l string) (n int, first string) {
	for _, round := range r.Rounds {
		n += round[l].Errors
		if first == "" {
			first = round[l].Fault
		}
	}
	return n, first
}

// of returns a figure of a lane in every round.
func (r results) of(l string, f figure) (values []float64) {
	for _, round := range r.Rounds {
		values = append(values, f.of(round[l]))
	}
	return values
}

// compared returns the row's ratio in every round.
func (r results) compared(w row) (values []float64) {
	for _, round := range r.Rounds {
		if w.ratio != nil {
			values = append(values, w.ratio(round))
			continue
		}
		values = append(values, w.figure.of(round[w.lane])/w.figure.of(round[w.base]))
	}
	return values
}

// line formats a row of the table, whose cells end with tabs.
func (r results) line(w row) string {
	name := w.title
	if w.base != "" || w.figure.name == p50.name {
		name += ": " + w.figure.name
	}
	cells := func(straight, base, own, ratio, errs string) string {
		return strings.Join([]string{name, straight, base, own, ratio, w.goal, strconv.Itoa(len(r.Rounds)), errs}, "\t") + "\t"
	}
	if n, first := r.faults(w.lane); n > 0 {
		return cells("-", "-", "failed: "+cell(first), "-", strconv.Itoa(n))
	}
	own := spreadOf(r.of(w.lane, w.figure))
	if w.base == "" {
		return cells("-", "-", fmt.Sprintf("%s [%s-%s]", w.figure.unit(own.Median), w.figure.unit(own.Low), w.figure.unit(own.High)), "-", "0")
	}
	straight := "-"
	if values := r.of("direct", w.figure); w.base != "direct" && spreadOf(values).Median > 0 {
		straight = w.figure.unit(spreadOf(values).Median)
	}
	base, ratio, errs := spreadOf(r.of(w.base, w.figure)), spreadOf(r.compared(w)), "0"
	if n, _ := r.faults(w.base); n > 0 {
		errs = fmt.Sprintf("0, %s %d", w.base, n)
	}
	return cells(straight, w.figure.unit(base.Median), w.figure.unit(own.Median), fmt.Sprintf("%.2f [%.2f-%.2f]", ratio.Median, ratio.Low, ratio.High), errs)
}

// cell makes a text fit for a cell of a table.
func cell(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	return text[:min(len(text), 120)]
}

// report writes the table.
func report(w io.Writer, m machine, o options, all []measured) error {
	fmt.Fprintf(w, "Measured on %s: %s, %d cores, %s, load average %s before the run. %s; toolgate %s; commit %s.\n%d rounds of %s for each lane, in turn.\n\n",
		m.Day, m.Processor, m.Cores, m.System, m.LoadBefore, m.Go, m.Toolgate, m.Commit, o.rounds, o.duration)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WORKLOAD\tDIRECT\tCOMPARED WITH\tTOOLGATE\tRATIO [LOWEST-HIGHEST]\tGOAL\tROUNDS\tERRORS\t")
	for _, x := range all {
		for _, row := range x.rows {
			fmt.Fprintln(table, x.line(row))
		}
	}
	return table.Flush()
}

// A measured workload has its results.
type measured struct {
	workload
	results
}
