package main

// A lane is one thing that a workload measures: clients of a revision before a peer.
type lane struct {
	name     string
	site     site
	via      via
	revision string // of the protocol; "" = 2025-11-25, with sessions
	tool     string // that echoes; "" = echo, whose verdict is constant
}

// A workload is measured lane by lane, in rounds: each round begins with another lane,
// so that the noise of the machine meets all of them.
type workload struct {
	name    string
	lanes   []lane
	measure measurement
	rounds  int // at most; 0 = as many as the others
	rows    []row
}

// A row is one line of the table.
type row struct {
	title  string
	lane   string
	base   string // lane that it is compared with; "" = none, the figure stands alone
	figure figure
	goal   string // of the comparison, or of the figure without a base
	// ratio compares the lanes of a round; nil divides the lane's figure by the base's.
	ratio func(round map[string]figures) float64
}

// A figure is one of the figures that a lane has, and its unit.
type figure struct {
	name string
	unit unit
	of   func(figures) float64
}

var (
	p50     = figure{"median", microseconds, func(f figures) float64 { return f.P50 }}
	p99     = figure{"99th percentile", microseconds, func(f figures) float64 { return f.P99 }}
	rate    = figure{"calls per second", perSecond, func(f figures) float64 { return f.Rate }}
	cpu     = figure{"CPU per call", microseconds, func(f figures) float64 { return f.CPU }}
	objects = figure{"allocations per call", plain, func(f figures) float64 { return f.Allocations }}
	memory  = figure{"resident memory", bytesUnit, func(f figures) float64 { return f.Resident }}
	spent   = figure{"CPU", microseconds, func(f figures) float64 { return f.CPU }}
	inMS    = figure{"time", milliseconds, func(f figures) float64 { return f.Value }}
	inKB    = figure{"memory", kilobyte, func(f figures) float64 { return f.Value }}
	inMB    = figure{"size", megabyte, func(f figures) float64 { return f.Value }}
	percent = figure{"CPU of one core", percents, func(f figures) float64 { return f.Value }}
	served  = figure{"agents", plain, func(f figures) float64 { return f.Value }}
)

// The sites and lanes of the workloads.
var (
	small    = site{}
	thousand = site{tools: 1000}
	many     = site{tools: 10_000, agents: 2 * warmRoles}
	old      = site{tickets: 300_000}

	bare      = lane{name: "direct", site: small, via: direct}
	plainHTTP = lane{name: "proxy", site: small, via: reverse}
	constant  = lane{name: "constant", site: small, via: gate}
	arguments = lane{name: "arguments", site: small, via: gate, tool: "checked"}
	newer     = lane{name: "stateless", site: small, via: gate, revision: stateless}
	synced    = lane{name: "sync", site: site{sync: true}, via: gate}
	durable   = lane{name: "governed", site: site{sync: true}, via: gate, tool: "checked"}
	buffers   = lane{name: "buffers", site: small, via: buffering}

	governed     = []lane{bare, plainHTTP, constant}
	everyVerdict = []lane{bare, plainHTTP, constant, arguments, newer}
	bothEras     = []lane{bare, buffers, constant, newer}
)

// at moves lanes to another site.
func at(s site, lanes ...lane) []lane {
	moved := make([]lane, len(lanes))
	for i, l := range lanes {
		l.site = s
		moved[i] = l
	}
	return moved
}

// workloads is everything that make bench measures, in its order.
// Every toolgate in the table has a token, a policy, a rate limit, the tools' schemas, the
// trail and Signals; the policy has the tools of 100 roles, and durability is os unless
// the workload says otherwise.
var workloads = []workload{
	{name: "1 client", lanes: everyVerdict, measure: closed(1, echoes), rows: []row{
		{title: "1 client, constant verdict", lane: "constant", base: "proxy", figure: p50, goal: "≤ 0.85"},
		{title: "1 client, verdict on arguments", lane: "arguments", base: "proxy", figure: p50, goal: "≤ 1.0"},
		{title: "1 client of 2026-07-28, constant verdict", lane: "stateless", base: "proxy", figure: p50, goal: "≤ 0.90"},
		{title: "1 client, constant verdict", lane: "constant", base: "proxy", figure: cpu, goal: "≤ 0.70"},
		{title: "1 client, constant verdict: allocations of a call", lane: "constant", figure: objects, goal: "≤ 15"},
		{title: "1 client, verdict on arguments: allocations of a call", lane: "arguments", figure: objects, goal: "≤ 40"},
		{title: "1 client of 2026-07-28, constant verdict: allocations of a call", lane: "stateless", figure: objects, goal: "≤ 20"},
	}},
	{name: "64 clients", lanes: everyVerdict, measure: closed(64, echoes), rows: []row{
		{title: "64 clients, constant verdict", lane: "constant", base: "proxy", figure: rate, goal: "≥ 2.0"},
		{title: "64 clients, verdict on arguments", lane: "arguments", base: "proxy", figure: rate, goal: "≥ 1.5"},
		{title: "64 clients of 2026-07-28, constant verdict", lane: "stateless", base: "proxy", figure: rate, goal: "≥ 1.9"},
		{title: "64 clients, constant verdict", lane: "constant", base: "proxy", figure: cpu, goal: "≤ 0.45"},
		{title: "64 clients, verdict on arguments", lane: "arguments", base: "proxy", figure: cpu, goal: "≤ 0.60"},
		{title: "64 clients of 2026-07-28, constant verdict", lane: "stateless", base: "proxy", figure: cpu, goal: "≤ 0.50"},
		{title: "64 clients, constant verdict", lane: "constant", base: "proxy", figure: memory},
	}},
	{name: "16 clients", lanes: governed, measure: closed(16, echoes), rows: []row{
		{title: "16 clients, constant verdict", lane: "constant", base: "proxy", figure: rate, goal: "≥ 1.7"},
	}},
	{name: "500 calls per second", lanes: governed, measure: open(500, echoes), rows: []row{
		{title: "500 calls per second, open loop", lane: "constant", base: "proxy", figure: p99, goal: "≤ 0.5"},
	}},
	{name: "100 KB, 1 client", lanes: bothEras, measure: closed(1, texts(100<<10)), rows: []row{
		{title: "100 KB results, 1 client", lane: "constant", base: "buffers", figure: p50, goal: "≤ 1.0"},
		{title: "100 KB results, 1 client of 2026-07-28", lane: "stateless", base: "buffers", figure: p50, goal: "≤ 1.0"},
	}},
	{name: "100 KB, 8 clients", lanes: bothEras, measure: closed(8, texts(100<<10)), rows: []row{
		{title: "100 KB results, 8 clients", lane: "constant", base: "buffers", figure: rate, goal: "≥ 1.1"},
		{title: "100 KB results, 8 clients of 2026-07-28", lane: "stateless", base: "buffers", figure: rate, goal: "≥ 1.1"},
		{title: "100 KB results, 8 clients", lane: "constant", base: "buffers", figure: cpu, goal: "≤ 1.0"},
		{title: "100 KB results, 8 clients of 2026-07-28", lane: "stateless", base: "buffers", figure: cpu, goal: "≤ 1.0"},
	}},
	{name: "5 MB", lanes: bothEras, measure: closed(1, texts(largest)), rows: []row{
		{title: "5 MB results, 1 client", lane: "constant", base: "buffers", figure: p50, goal: "≤ 1.0"},
		{title: "5 MB results, 1 client of 2026-07-28", lane: "stateless", base: "buffers", figure: p50, goal: "≤ 1.0"},
		{title: "5 MB results, 1 client", lane: "constant", base: "buffers", figure: cpu, goal: "≤ 2.3"},
	}},
	{name: "sync, 1 client", lanes: []lane{{name: "disk"}, plainHTTP, constant, synced}, measure: orDisk(closed(1, echoes)), rows: []row{
		{title: "durability sync, 1 client: added to os, in times of fdatasync", lane: "sync", base: "constant", figure: p50, goal: "≤ 2", ratio: addedSyncs},
		{title: "fdatasync of 1 KB on this machine", lane: "disk", figure: p50},
	}},
	{name: "sync, 64 clients", lanes: []lane{plainHTTP, synced}, measure: closed(64, echoes), rows: []row{
		{title: "durability sync, 64 clients", lane: "sync", base: "proxy", figure: rate, goal: "≥ 1.0"},
	}},
	{name: "issuer", lanes: []lane{constant, {name: "issued", site: site{issued: true}, via: gate}}, measure: closed(1, echoes), rows: []row{
		{title: "1 client, token of an issuer, to a configured one", lane: "issued", base: "constant", figure: p50, goal: "≤ 1.05"},
	}},
	{name: "personal", lanes: []lane{{name: "header", site: site{isolated: true, header: true}, via: gate}, {name: "own", site: site{isolated: true, personal: true}, via: gate}}, measure: closed(1, echoes), rows: []row{
		{title: "1 client, the caller's own token, to a header of the configuration", lane: "own", base: "header", figure: p50},
	}},
	{name: "open pages", lanes: []lane{constant, {name: "watched", site: site{pages: 10}, via: gate}}, measure: open(1000, echoes), rows: []row{
		{title: "1,000 calls per second, ten open lists of calls, to none", lane: "watched", base: "constant", figure: p50, goal: "≤ 1.05"},
		{title: "1,000 calls per second, ten open lists of calls, to none", lane: "watched", base: "constant", figure: cpu},
	}},
	{name: "start", lanes: []lane{plainHTTP, constant}, measure: startup, rows: []row{
		{title: "start to the first answer", lane: "constant", figure: inMS, goal: "≤ 40 ms"},
		{title: "CPU until the first answer", lane: "constant", figure: spent},
		{title: "memory after the first answer", lane: "constant", figure: memory, goal: "≤ 45 MB"},
	}},
	{name: "a million calls", lanes: []lane{{name: "early", site: small, via: gate}, constant}, measure: memoryAfter, rounds: 1, rows: []row{
		{title: "after 1,000,000 calls, to after 100,000", lane: "constant", base: "early", figure: memory, goal: "≤ 1.1"},
	}},
	{name: "idle sessions", lanes: []lane{constant}, measure: idleSessions(false), rounds: 3, rows: []row{
		{title: "idle session", lane: "constant", figure: inKB, goal: "≤ 25 KB"},
	}},
	{name: "idle sessions with streams", lanes: []lane{constant}, measure: idleSessions(true), rounds: 3, rows: []row{
		{title: "idle session with a GET stream", lane: "constant", figure: inKB, goal: "≤ 45 KB"},
	}},
	{name: "idle", lanes: []lane{constant}, measure: idleCPU, rounds: 3, rows: []row{
		{title: "idle serve", lane: "constant", figure: percent, goal: "≤ 0.1 %"},
	}},
	{name: "binary", lanes: []lane{constant}, measure: binary, rounds: 1, rows: []row{
		{title: "program file", lane: "constant", figure: inMB, goal: "≤ 40 MB"},
	}},
	{name: "old tickets", lanes: []lane{constant, {name: "old", site: old, via: gate}}, measure: closed(1, holds), rows: []row{
		{title: "held call with 300,000 old tickets, to none", lane: "old", base: "constant", figure: p50, goal: "≤ 1.1"},
	}},
	{name: "default isolation", lanes: at(site{isolated: true, agents: 1000}, constant), measure: isolated, rounds: 2, rows: []row{
		{title: "agents served at once, isolation session", lane: "constant", figure: served, goal: "1,000"},
	}},
	{name: "list of 1,000", lanes: at(thousand, bare, plainHTTP, constant, newer), measure: closed(1, lists), rows: []row{
		{title: "tools/list of 1,000", lane: "constant", base: "proxy", figure: p50, goal: "≤ 0.8"},
		{title: "tools/list of 1,000, client of 2026-07-28", lane: "stateless", base: "proxy", figure: p50, goal: "≤ 0.8"},
	}},
	{name: "list of 10,000", lanes: at(many, plainHTTP, constant, newer), measure: closed(1, lists), rows: []row{
		{title: "tools/list of 10,000", lane: "constant", base: "proxy", figure: p50, goal: "≤ 1.0"},
		{title: "tools/list of 10,000, client of 2026-07-28", lane: "stateless", base: "proxy", figure: p50, goal: "≤ 1.0"},
	}},
	{name: "call with 10,000 tools", lanes: []lane{constant, {name: "many", site: many, via: gate}}, measure: closed(1, echoes), rows: []row{
		{title: "call with 10,000 tools, to 3", lane: "many", base: "constant", figure: p50, goal: "≤ 1.1"},
	}},
	{name: "first list", lanes: at(many, constant), measure: firstList, rows: []row{
		{title: "first tools/list of 10,000 for a rights set", lane: "constant", figure: p50, goal: "≤ 500 ms"},
	}},
	{name: "100 role sets", lanes: at(many, constant, lane{name: "roles", via: gate}), measure: rolesOrOne, rounds: 3, rows: []row{
		{title: "tools/list of 10,000, 100 role sets in turn, to one", lane: "roles", base: "constant", figure: p50, goal: "≤ 1.1"},
	}},
	{name: "stdio, 1 client", lanes: at(site{stdio: true}, bare, constant), measure: closed(1, echoes), rows: []row{
		{title: "stdio to stdio, 1 caller, to direct", lane: "constant", base: "direct", figure: p50, goal: "≤ 3"},
	}},
	{name: "stdio, 16 clients", lanes: at(site{stdio: true}, bare, constant), measure: closed(16, echoes), rows: []row{
		{title: "stdio to stdio, 16 callers, to direct", lane: "constant", base: "direct", figure: rate, goal: "≥ 0.25"},
	}},
	{name: "guardian", lanes: at(site{stdio: true}, constant), measure: guardian, rounds: 3, rows: []row{
		{title: "process beside a stdio server, anonymous memory", lane: "constant", figure: inMB, goal: "≤ 3 MB"},
	}},
}

// orDisk measures the lane disk with fdatasync and the others with m.
func orDisk(m measurement) measurement {
	return func(b *bench, l lane) figures {
		if l.name == "disk" {
			return disk(b, l)
		}
		return m(b, l)
	}
}

// rolesOrOne measures the lane roles with a hundred agents and the others with one.
func rolesOrOne(b *bench, l lane) figures {
	if l.name == "roles" {
		return eachRole(b, l)
	}
	return closed(1, lists)(b, l)
}

// addedSyncs is what durability sync adds to a call, in times of the disk's flush.
func addedSyncs(round map[string]figures) float64 {
	return (round["sync"].P50 - round["constant"].P50) / round["disk"].P50
}
