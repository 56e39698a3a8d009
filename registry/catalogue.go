package registry

import (
	"fmt"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/registry/config"
)

// Catalogue is every tool of every upstream at one moment, those included that
// only some clients get to see; what one of them sees is a View. It is
// immutable and safe for concurrent use; a change is a new Catalogue.
type Catalogue struct {
	entries     []*entry                      // of all servers, in configured order
	running     map[string][]*entry           // :: route ⇒ entries that are not disabled; "" is all of them
	byServer    map[string][]*Tool            // :: server ⇒ its definitions in upstream order, quarantined ones included
	byName      map[string]map[string][]*Tool // :: server ⇒ upstream name ⇒ definitions, that for all clients first
	serving     map[string]map[string]*Tool   // :: route ⇒ name there ⇒ tool that serves, by its first definition
	listed      map[string][]*Tool            // :: route ⇒ tools that serve; "" is all of them
	shared      map[string][]*Tool            // :: route ⇒ those of them that every connection lists
	quarantined []*Tool
	alike       map[string]*Tool    // :: look of an exposed name ⇒ tool that serves
	offered     map[string]*Tool    // :: look of an upstream's name ⇒ first tool that serves
	shadows     map[string][]string // :: server ⇒ its tools whose name another server's tool has, for the operator
}

// Lookup finds a tool that serves. Route "" is the aggregated catalogue, where
// tools go by their exposed names; any other route is a server, where they go
// by the upstream's own. It reports false for unknown and quarantined tools
// alike: Quarantined tells them apart.
func (c *Catalogue) Lookup(route, name string) (*Tool, bool) {
	t, ok := c.serving[route][name]
	return t, ok
}

// Tools lists what serves on a route, servers in configured order, tools in
// the order of their upstream. The slice is shared: callers must not change it.
func (c *Catalogue) Tools(route string) []*Tool { return c.listed[route] }

// HasServer reports whether name is a configured server that is not disabled,
// whatever its state.
func (c *Catalogue) HasServer(name string) bool { return c.entry(name) != nil }

// entry returns the entry of a server that is not disabled, nil for any other name.
func (c *Catalogue) entry(server string) *entry {
	if entries := c.running[server]; server != "" && len(entries) > 0 {
		return entries[0]
	}
	return nil
}

// Quarantined lists the tools that do not serve, in catalogue order, each with
// its reason. The slice is shared: callers must not change it.
func (c *Catalogue) Quarantined() []*Tool { return c.quarantined }

// Definitions lists every definition that the servers which are not disabled offer, those that do not
// serve included, in catalogue order.
func (c *Catalogue) Definitions() (all []*Tool) {
	for _, e := range c.running[""] {
		all = append(all, c.byServer[e.cfg.Name]...)
	}
	return all
}

// NewCatalogue assembles a catalogue from tools that are already made, servers
// in the order given and tools in theirs. Of two tools with one exposed name
// the later one is quarantined. It is for those who judge against a catalogue
// without running upstreams.
func NewCatalogue(servers []string, tools ...*Tool) *Catalogue {
	var entries []*entry
	for _, server := range servers {
		e := &entry{cfg: config.Server{Name: server}}
		for _, t := range tools {
			if t.Server == server {
				e.tools = append(e.tools, t)
			}
		}
		entries = append(entries, e)
	}
	return newCatalogue(entries)
}

// newCatalogue assembles a catalogue of entries. Of two tools with one exposed
// name the later one is quarantined, and before any other the one that only some
// connections list.
func newCatalogue(entries []*entry) *Catalogue {
	c := &Catalogue{
		running: make(map[string][]*entry), byServer: make(map[string][]*Tool), byName: make(map[string]map[string][]*Tool),
		serving: map[string]map[string]*Tool{"": {}}, listed: make(map[string][]*Tool), shared: make(map[string][]*Tool),
		alike: make(map[string]*Tool), offered: make(map[string]*Tool), shadows: make(map[string][]string),
	}
	for _, e := range entries {
		e, name := new(*e), e.cfg.Name
		c.entries = append(c.entries, e)
		if e.cfg.Disabled {
			continue
		}
		c.running[""] = append(c.running[""], e)
		c.running[name] = []*entry{e}
		c.byServer[name], c.byName[name], c.serving[name] = nil, make(map[string][]*Tool), make(map[string]*Tool)
	}
	for _, own := range []bool{false, true} {
		for _, e := range c.running[""] {
			for _, t := range e.tools {
				if t.own == own {
					c.add(t)
				}
			}
		}
	}
	return c
}

// add puts one definition in its places. Another definition of a tool, for some clients, is
// only found by what their connections list.
func (c *Catalogue) add(t *Tool) {
	if first, taken := c.serving[""][t.Exposed]; taken && t.Quarantine == "" && !t.varies(first) {
		t = t.quarantined("its exposed name " + t.Exposed + " is taken by server " + first.Server + "\nhint: give one of the servers another prefix")
	} else if first := c.lookalike(t); first != nil && t.Quarantine == "" {
		t = t.quarantined(fmt.Sprintf("its exposed name %s is easily taken for %s of server %s\nhint: give one of the servers another prefix, or leave the tool out with expose", t.Exposed, first.Exposed, first.Server))
	}
	c.byServer[t.Server] = append(c.byServer[t.Server], t)
	named := append(c.byName[t.Server][t.Name], t)
	c.byName[t.Server][t.Name] = named
	if t.Quarantine != "" {
		c.quarantined = append(c.quarantined, t)
		return
	}
	c.noteLooks(t)
	if t.varies(named[0]) {
		return
	}
	c.serving[""][t.Exposed] = t
	if named[0] == t {
		c.serving[t.Server][t.Name] = t
	}
	c.listed[""] = append(c.listed[""], t)
	c.listed[t.Server] = append(c.listed[t.Server], t)
	if !t.own {
		c.shared[""] = append(c.shared[""], t)
		c.shared[t.Server] = append(c.shared[t.Server], t)
	}
}

// varies reports whether t is a further definition of the tool first, for some clients.
func (t *Tool) varies(first *Tool) bool {
	return t.own && t != first && t.Server == first.Server && t.Name == first.Name
}

// Defined finds the definition of a server's tool with a fingerprint, whichever clients it is
// for, by the upstream's name. One that serves goes before one that does not.
func (c *Catalogue) Defined(server, name, fingerprint string) (found *Tool, ok bool) {
	for _, t := range c.byName[server][name] {
		if t.Fingerprint == fingerprint && (found == nil || found.Quarantine != "" && t.Quarantine == "") {
			found = t
		}
	}
	return found, found != nil
}

// find returns a definition of a tool that is wanted, one that serves before others.
func (c *Catalogue) find(route, name string, wanted func(*Tool) bool) (found *Tool, ok bool) {
	for _, e := range c.running[route] {
		own, of := name, true
		if route == "" {
			own, of = strings.CutPrefix(name, e.cfg.Prefix)
		}
		if !of {
			continue
		}
		for _, t := range c.byName[e.cfg.Name][own] {
			if wanted(t) && (found == nil || found.Quarantine != "" && t.Quarantine == "") {
				found = t
			}
		}
	}
	return found, found != nil
}

// looks are what two names have in common that a reader takes for one: their
// letters without regard to case, and what is left when characters are replaced
// that look alike in many fonts (the ASCII part of UTS 39, confusables). Names
// have no other characters than those of ASCII.
func looks(name string) [2]string {
	return [...]string{"case " + strings.ToLower(name), "shape " + strings.ToLower(lookalikes.Replace(name))}
}

var lookalikes = strings.NewReplacer("I", "l", "1", "l", "0", "O", "m", "rn")

// lookalike returns another tool that serves under an exposed name that looks like that
// of t, nil for none.
func (c *Catalogue) lookalike(t *Tool) *Tool {
	for _, look := range looks(t.Exposed) {
		if first := c.alike[look]; first != nil && !t.varies(first) {
			return first
		}
	}
	return nil
}

// noteLooks records the names of a tool that serves, and notes for the operator
// when a tool of another server has a name like it. Two instances of one program
// offer the same definitions.
func (c *Catalogue) noteLooks(t *Tool) {
	for _, look := range looks(t.Exposed) {
		c.alike[look] = t
	}
	for _, look := range looks(t.Name) {
		first := c.offered[look]
		if first == nil {
			c.offered[look] = t
		} else if first.Server != t.Server && first.Fingerprint != t.Fingerprint {
			c.shadows[t.Server] = append(c.shadows[t.Server], fmt.Sprintf("tool %s has a name like tool %s of server %s: agents may take one for the other", t.Name, first.Name, first.Server))
			break
		}
	}
}

// quarantined gives a copy of t that does not serve.
func (t *Tool) quarantined(reason string) *Tool {
	out := *t
	out.Quarantine = reason
	return &out
}

// waitsForPin reports whether a pin keeps a tool back.
func (c *Catalogue) waitsForPin() bool {
	return slices.ContainsFunc(c.quarantined, func(t *Tool) bool { return t.pinned })
}

// looksLike reports whether nobody can see that c has taken the place of other.
// A tool that only some connections list is seen when they do, and that it came
// to be known here or was forgotten changes nothing for anybody, unless it is another than
// the accepted one.
func (c *Catalogue) looksLike(other *Catalogue) bool {
	if !slices.EqualFunc(c.running[""], other.running[""], func(a, b *entry) bool { return a.cfg.Name == b.cfg.Name }) {
		return false
	}
	own := func(t *Tool) bool { return t.own }
	for server, tools := range c.byServer {
		shared, before := slices.DeleteFunc(slices.Clone(tools), own), slices.DeleteFunc(slices.Clone(other.byServer[server]), own)
		if !slices.EqualFunc(shared, before, (*Tool).equal) {
			return false
		}
		for _, t := range tools {
			before := slices.DeleteFunc(slices.Clone(other.byName[server][t.Name]), func(was *Tool) bool { return !was.own || was.Condition != t.Condition })
			if t.own && (len(before) > 0 || t.former != "") && !slices.ContainsFunc(before, t.equal) {
				return false
			}
		}
	}
	return true
}

// equal reports whether two tools say the same. Schemas and annotations are
// part of the definition, which the fingerprint names.
func (t *Tool) equal(other *Tool) bool {
	return t.Server == other.Server && t.Name == other.Name && t.Exposed == other.Exposed && t.Condition == other.Condition &&
		t.Fingerprint == other.Fingerprint && t.Risk == other.Risk && t.InputMode == other.InputMode && t.OutputMode == other.OutputMode &&
		t.AllowVariants == other.AllowVariants && t.Timeout == other.Timeout && t.MaxTimeout == other.MaxTimeout &&
		t.Quarantine == other.Quarantine && t.Notice == other.Notice
}
