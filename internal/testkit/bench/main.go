// Bench measures what a governed call costs, next to the same call through a plain
// reverse proxy.
//
//	make bench                                  # everything, as a table
//	make bench ARGS='-quick -only "1 client"'   # try something out
//	make bench ARGS='-o json'                   # the figures of every round
//	make bench ARGS='-beside FILE -only beside' # next to MCP proxies of others (beside.go)
//
// It starts real processes on loopback: an MCP server (upstream.go), the stock
// httputil.ReverseProxy of Go before it as the yardstick (proxy.go), and toolgate
// before it with a token, a policy, a rate limit, schemas, the audit trail and Signals
// (peers.go). Clients on plain sockets (client.go) send the load (load.go).
//
// workloads.go is the method: every workload of the table with its lanes (which
// peer, which clients), its load and its rows. A workload measures its
// lanes in turn, A B C, then B C A, so that a disturbance of the machine meets all
// of them. A ratio compares two lanes of the same round; the table has its median over
// the rounds, and the lowest and the highest. Every answer is checked, and a row says
// failed when one call through toolgate failed.
//
// Times are of the client. CPU time is of the peer's process alone, read from its
// clock, and memory is its resident set; of sessions it is the part that no file backs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	rounds   int
	duration time.Duration // of one measurement
	only     *regexp.Regexp
	output   string // table or json
	scratch  string // directory for what runs leave; on the disk that is to be measured
	toolgate string // the program
	file     string // that describes the neighbours
	beside   []neighbour
}

func main() {
	if command(os.Args[1:]) {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// parse reads the command line.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	var quick bool
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.rounds, "rounds", 5, "interleaved rounds")
	flags.DurationVar(&o.duration, "duration", 1200*time.Millisecond, "time of one measurement")
	flags.StringVar(&only, "only", "", "only workloads whose name matches this regular expression")
	flags.StringVar(&o.output, "o", "table", "table, or json for the figures of every round")
	flags.BoolVar(&quick, "quick", false, "2 rounds of 300ms, to try out")
	flags.StringVar(&o.scratch, "scratch", ".cache/bench", "directory for state, on the disk that is measured")
	flags.StringVar(&o.toolgate, "toolgate", "bin/toolgate", "the program that is measured")
	flags.StringVar(&o.file, "beside", "", "file that describes MCP proxies of others, which are measured too")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 || o.rounds < 1 || o.duration <= 0 || o.output != "table" && o.output != "json" {
		return o, errors.New("bench takes flags only, at least one round, a duration above zero, and -o table or json")
	}
	if quick {
		o.rounds, o.duration = 2, 300*time.Millisecond
	}
	expression, err := regexp.Compile(only)
	if err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	o.only = expression
	if o.beside, err = readNeighbours(o.file); err != nil {
		return o, err
	}
	if o.file, err = filepath.Abs(o.file); err != nil {
		return o, err
	}
	o.toolgate, err = filepath.Abs(o.toolgate)
	return o, err
}

// errFailed reports that a workload had errors; its row names the first.
var errFailed = errors.New("some calls failed: see the table")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	m, err := describe(o.toolgate)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, o)
	if err != nil {
		return err
	}
	defer b.end()
	begun := time.Now()
	all := b.all(stderr)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if len(all) == 0 {
		return fmt.Errorf("-only matches none of: %s", strings.Join(o.names(), ", "))
	}
	fmt.Fprintf(stderr, "%d workloads in %s\n", len(all), time.Since(begun).Round(time.Second))
	if err := publish(stdout, o, m, all); err != nil {
		return err
	}
	if slices.ContainsFunc(all, failing) {
		return errFailed
	}
	return nil
}

// workloads returns everything that can be measured.
func (o options) workloads() []workload { return slices.Concat(workloads, beside(o.beside)) }

// names returns the names of all workloads.
func (o options) names() (all []string) {
	for _, w := range o.workloads() {
		all = append(all, w.name)
	}
	return all
}

// failing reports whether a lane of a workload had errors. The plain proxy loses some
// large results (see serveProxy).
func failing(m measured) bool {
	return slices.ContainsFunc(m.lanes, func(l lane) bool {
		n, _ := m.faults(l.name)
		return n > 0 && l.via != reverse
	})
}

// publish prints the results.
func publish(stdout io.Writer, o options, m machine, all []measured) error {
	if o.output == "table" {
		return report(stdout, m, o, all)
	}
	raw := make([]results, len(all))
	for i, x := range all {
		raw[i] = x.results
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", " ")
	return encoder.Encode(map[string]any{"machine": m, "workloads": raw})
}

func newBench(ctx context.Context, o options) (*bench, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	scratch, err := filepath.Abs(o.scratch)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(scratch, "run-")
	if err != nil {
		return nil, err
	}
	i, err := newIssuer()
	if err != nil {
		return nil, err
	}
	return &bench{options: o, ctx: ctx, self: self, dir: dir, sites: map[site]*running{}, issuer: i}, nil
}

// end ends all processes and removes what they wrote.
func (b *bench) end() {
	b.keep(nil)
	b.issuer.Close()
	_ = os.RemoveAll(b.dir) // a leftover is in the scratch directory
}

// all measures every workload that was asked for.
func (b *bench) all(progress io.Writer) (all []measured) {
	for _, w := range b.workloads() {
		if b.only.MatchString(w.name) {
			all = append(all, measured{w, b.interleave(w, progress)})
		}
	}
	return all
}

// interleave measures the lanes of a workload in turn, round by round.
func (b *bench) interleave(w workload, progress io.Writer) results {
	b.keep(w.lanes)
	r := results{Workload: w.name}
	n := b.rounds
	if w.rounds > 0 {
		n = min(n, w.rounds)
	}
	for i := range n {
		round := map[string]figures{}
		for j := range w.lanes {
			l := w.lanes[(i+j)%len(w.lanes)]
			if b.ctx.Err() != nil {
				return r
			}
			f := w.measure(b, l)
			round[l.name] = f
			fmt.Fprintf(progress, "%-28s %d %-22s %8d calls %10s median %10s p99 %8.0f/s %6.0f µs CPU %8.2f %d errors %s\n",
				w.name, i+1, l.name, f.Calls, microseconds(f.P50), microseconds(f.P99), f.Rate, f.CPU, f.Value, f.Errors, cell(f.Fault))
		}
		r.Rounds = append(r.Rounds, round)
	}
	return r
}
