package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// startTime bounds the time until a peer answers.
const startTime = 3 * time.Minute

// A peer is a running program that clients talk to over HTTP.
type peer struct {
	*process
	endpoint
	dir   string
	ready time.Duration // from its start to the end of a first conversation
}

// end ends the program and removes what it wrote.
func (p *peer) end() {
	p.process.end()
	_ = os.RemoveAll(p.dir) // the end of the run removes all that is left
}

// A line that toolgate prints, and one of its metrics.
var (
	consoleURL = regexp.MustCompile(`http://\S+/console/`)
	mallocs    = regexp.MustCompile(`(?m)^go_memstats_mallocs_total (\S+)$`)
)

// allocated returns how many objects a toolgate has allocated since it started, 0 for any
// other peer.
func (p *peer) allocated() (float64, error) {
	console, err := p.console()
	if err != nil || console == "" {
		return 0, err
	}
	res, err := http.Get(strings.Replace(console, "/console/", "/metrics", 1)) //nolint:noctx // it is on this machine
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, err
	}
	sample := mallocs.FindSubmatch(text)
	if sample == nil {
		return 0, fmt.Errorf("%s has no go_memstats_mallocs_total", res.Request.URL)
	}
	return strconv.ParseFloat(string(sample[1]), 64)
}

// A running site has the processes that its lanes have needed so far.
type running struct {
	site
	b     *bench
	peers map[via]*peer
	pipes map[via]*pipe
}

// peer returns the peer of a kind, which it starts when it is not there.
func (r *running) peer(v via) (*peer, error) {
	if p := r.peers[v]; p != nil {
		return p, p.ended()
	}
	p, err := r.fresh(v)
	if err != nil {
		return nil, err
	}
	r.peers[v] = p
	return p, nil
}

// fresh starts one more peer of a kind and holds a first conversation with it.
func (r *running) fresh(v via) (*peer, error) {
	e := endpoint{revision: withSessions}
	upstream := ""
	if v != direct {
		u, err := r.peer(direct)
		if err != nil {
			return nil, err
		}
		upstream = u.address
	}
	dir := r.b.newDir()
	switch v {
	case direct:
		return r.launch(e, dir, r.b.self, "upstream", "-http", "-tools", strconv.Itoa(r.toolCount()))
	case reverse, buffering:
		return r.launch(e, dir, r.b.self, "proxy", "-to", upstream, "-buffer="+strconv.FormatBool(v == buffering))
	}
	if n := slices.IndexFunc(r.b.beside, func(n neighbour) bool { return n.Name == string(v) }); n >= 0 {
		return r.startNeighbour(r.b.beside[n], upstream, dir)
	}
	e.token, e.prefix = token(0), "up__"
	if r.issued {
		e.token = r.b.issuer.token()
	}
	if err := r.files(upstream, dir); err != nil {
		return nil, err
	}
	p, err := r.launch(e, dir, r.b.toolgate, "serve", "--config", "mcp.json", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0")
	if err == nil && r.pages > 0 {
		err = p.openPages(r.pages)
	}
	return p, err
}

// files writes the configuration and the state that a toolgate starts with.
func (r *running) files(upstream, dir string) error {
	issuer := ""
	if r.issued {
		issuer = r.b.issuer.URL
	}
	if err := r.write(r.b.self, upstream, issuer, dir); err != nil {
		return err
	}
	if r.tickets == 0 {
		return nil
	}
	return addTickets(r.b.ctx, filepath.Join(dir, "state"), r.tickets)
}

// launch starts a program and converses with it until that succeeds.
func (r *running) launch(e endpoint, dir, name string, args ...string) (*peer, error) {
	begun := time.Now()
	proc, err := programIn(r.b.ctx, dir, name, args...)
	if err != nil {
		return nil, err
	}
	if e.address, err = proc.serve(); err != nil {
		return nil, err
	}
	return r.greet(&peer{process: proc, endpoint: e, dir: dir}, begun)
}

// greet converses with a peer until that succeeds.
func (r *running) greet(p *peer, begun time.Time) (*peer, error) {
	for {
		err := converse(p.endpoint, r.toolCount())
		p.ready = time.Since(begun)
		if err == nil {
			return p, nil
		}
		if ended := p.ended(); ended != nil || p.ready > startTime || r.b.ctx.Err() != nil {
			p.end()
			return nil, errors.Join(err, ended)
		}
		pause(time.Millisecond)
	}
}

// converse is the shortest useful conversation: initialize, list the tools, call one.
func converse(e endpoint, tools int) error {
	s, err := dial(e)
	if err != nil {
		return err
	}
	defer s.close()
	if err := list(tools)(s, 0, 0); err != nil {
		return err
	}
	return echo("echo")(s, 0, 0)
}

// pipe returns the peer of a kind on stdin and stdout.
func (r *running) pipe(v via) (*pipe, error) {
	if p := r.pipes[v]; p != nil {
		return p, nil
	}
	dir, e := r.b.newDir(), endpoint{revision: withSessions}
	name, args := r.b.self, []string{"upstream", "-tools", strconv.Itoa(r.toolCount())}
	if v == gate {
		e.prefix = "up__"
		name, args = r.b.toolgate, []string{"stdio", "--config", "mcp.json", "--role", "agent"}
		if err := r.files("", dir); err != nil {
			return nil, err
		}
	}
	proc, err := programIn(r.b.ctx, dir, name, args...)
	if err != nil {
		return nil, err
	}
	p, err := openPipe(proc, e)
	if err != nil {
		return nil, err
	}
	r.pipes[v] = p
	return p, nil
}

// close ends all processes, the upstream last.
func (r *running) close() {
	for _, p := range r.pipes {
		p.end()
	}
	upstream := r.peers[direct]
	delete(r.peers, direct)
	for _, p := range r.peers {
		p.end()
	}
	if upstream != nil {
		upstream.end()
	}
}

// callers returns n callers of a lane.
func (r *running) callers(l lane, n int) ([]caller, error) {
	var callers []caller
	for range n {
		c, err := r.caller(l, 0)
		if err != nil {
			closeAll(callers)
			return nil, err
		}
		callers = append(callers, c)
	}
	return callers, nil
}

// caller returns a caller of a lane for an agent.
func (r *running) caller(l lane, agent int) (caller, error) {
	if r.stdio {
		p, err := r.pipe(l.via)
		if err != nil {
			return nil, err
		}
		return p.caller(), nil
	}
	p, err := r.peer(l.via)
	if err != nil {
		return nil, err
	}
	e := p.endpoint
	if l.revision != "" {
		e.revision = l.revision
	}
	if e.token != "" && !r.issued {
		e.token = token(agent)
	}
	return dial(e)
}

func closeAll(callers []caller) {
	for _, c := range callers {
		c.close()
	}
}

// A bench is one run: its options, and the sites that are running.
type bench struct {
	options
	ctx    context.Context
	self   string // this program
	dir    string // of the run
	dirs   int
	used   int // agents whose rights set has been used
	sites  map[site]*running
	issuer *issuer
}

// newDir returns a directory that nothing has used.
func (b *bench) newDir() string {
	b.dirs++
	return filepath.Join(b.dir, strconv.Itoa(b.dirs))
}

// site returns the running site of a kind.
func (b *bench) site(s site) *running {
	if b.sites[s] == nil {
		b.sites[s] = &running{site: s, b: b, peers: map[via]*peer{}, pipes: map[via]*pipe{}}
	}
	return b.sites[s]
}

// keep closes all sites but those of the lanes.
func (b *bench) keep(lanes []lane) {
	wanted := map[site]bool{}
	for _, l := range lanes {
		wanted[l.site] = true
	}
	for s, r := range b.sites {
		if !wanted[s] {
			r.close()
			delete(b.sites, s)
		}
	}
}
