package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A neighbour is an MCP proxy or gateway of others, which -beside measures next to
// toolgate: the same upstream behind it, the same checks of every answer, and a place in
// every round. Its texts may name {upstream} and {port}, both on loopback, {dir}, where it
// may write, and {files}, the directory of the file that describes it.
type neighbour struct {
	Name    string
	Command []string // that ends at a SIGTERM
	URL     string   // of its MCP endpoint
	Prefix  string   // of tool names
	Headers map[string]string
}

// readNeighbours reads a file of neighbours; "" has none.
func readNeighbours(file string) (all []neighbour, err error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	names := map[string]bool{"": true, bare.name: true, durable.name: true, plainHTTP.name: true}
	for _, n := range all {
		if names[n.Name] || len(n.Command) == 0 || n.URL == "" {
			err = errors.Join(err, fmt.Errorf("neighbour %q needs a name of its own, a command and a URL", n.Name))
		}
		names[n.Name] = true
	}
	if err != nil {
		return nil, fmt.Errorf("-beside: %w", err)
	}
	return all, nil
}

// beside returns the workloads that compare toolgate with neighbours. toolgate evaluates
// its policy on the arguments, and the record of a call is on disk before the call is sent:
// neither is left out because a neighbour does without.
func beside(all []neighbour) []workload {
	if len(all) == 0 {
		return nil
	}
	lanes := at(durable.site, bare, durable, plainHTTP)
	for _, n := range all {
		lanes = append(lanes, lane{name: n.Name, site: durable.site, via: via(n.Name)})
	}
	one := workload{name: "beside, 1 client", lanes: lanes, measure: closed(1, echoes)}
	crowd := workload{name: "beside, 64 clients", lanes: lanes, measure: closed(64, echoes)}
	for _, l := range lanes[2:] {
		// times tells how many times as much of the figure the lane has or needs.
		times := func(f figure) func(map[string]figures) float64 {
			return func(round map[string]figures) float64 { return f.of(round[l.name]) / f.of(round[durable.name]) }
		}
		one.rows = append(one.rows, row{title: l.name + " to toolgate, 1 client", lane: durable.name, base: l.name, figure: p50, ratio: times(p50)})
		crowd.rows = append(crowd.rows,
			row{title: "toolgate to " + l.name + ", 64 clients", lane: durable.name, base: l.name, figure: rate},
			row{title: l.name + " to toolgate, 64 clients", lane: durable.name, base: l.name, figure: cpu, ratio: times(cpu)})
	}
	return []workload{one, crowd}
}

// startNeighbour starts a neighbour before an upstream.
func (r *running) startNeighbour(n neighbour, upstream, dir string) (*peer, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is on this machine
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String()) // a listener's address has a port
	l.Close()                                          // the neighbour listens there
	fill := strings.NewReplacer("{upstream}", upstream, "{port}", port, "{dir}", dir, "{files}", filepath.Dir(r.b.file)).Replace
	at, err := url.Parse(fill(n.URL))
	if err != nil {
		return nil, err
	}
	e := endpoint{address: at.Host, path: at.Path, prefix: n.Prefix, revision: withSessions, foreign: true}
	for name, value := range n.Headers {
		e.extra += name + ": " + fill(value) + "\r\n"
	}
	args := make([]string, len(n.Command))
	for i, arg := range n.Command {
		args[i] = fill(arg)
	}
	begun := time.Now()
	proc, err := programIn(r.b.ctx, dir, args[0], args[1:]...)
	if err != nil {
		return nil, err
	}
	proc.cmd.Stdout = proc.log
	if err := proc.start(); err != nil {
		return nil, err
	}
	return r.greet(&peer{process: proc, endpoint: e, dir: dir}, begun)
}
