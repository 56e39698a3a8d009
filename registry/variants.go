package registry

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Reasons of the quarantine of a definition that has no place among the pins.
const (
	otherForSome = "the server offers it with another definition to some clients that declare no capabilities" +
		"\nhint: set isolation to shared for this server if all shall have the same"
	tooManyVariants = "the server offers more definitions of it, by what clients can do, than are kept" +
		"\nhint: set isolation to shared for this server if all shall have the same"
)

// maxVariants bounds the conditions under which one tool is pinned. Clients choose the
// capabilities that conditions name.
const maxVariants = 16

// variant is one condition under which definitions of a tool are pinned.
type variant struct {
	condition upstream.Condition
	known     []string // fingerprints that are accepted, offered or locked under it
	accepted  []string // those of them that are accepted or locked
	taken     []*Tool  // that are listed now and have their place here
}

// places are the variants of the tools of one server, by the server's name of the tool. A
// server tells us which definition a client gets, and not why. So a definition that only
// some clients get has its place under a condition that its first client meets:
//
//  1. where it is known already;
//  2. else where no client of another kind gets another definition now, since the server may
//     have changed that one: under the condition with the fewest names, and under that for
//     all clients only when the shared connection does not list the tool;
//  3. else under the condition of its first client, as a new one.
type places map[string][]*variant

// placesOf returns the places that pins and lock have of a server.
func placesOf(server string, pins map[pinKey]*Pin, locked lock.Server) places {
	p := make(places)
	for key, pin := range pins {
		if key.server == server {
			v := p.at(key.tool, key.condition)
			v.accepted, v.known = append(v.accepted, pin.Accepted), append(v.known, pin.Accepted, pin.Offered)
		}
	}
	fromLock := func(tool, condition, fingerprint string) {
		v := p.at(tool, upstream.Condition(condition))
		v.accepted, v.known = append(v.accepted, fingerprint), append(v.known, fingerprint)
	}
	for tool, fingerprint := range locked.Tools {
		fromLock(tool, "", fingerprint)
	}
	for tool, all := range locked.Variants {
		for condition, fingerprint := range all {
			fromLock(tool, condition, fingerprint)
		}
	}
	return p
}

// at returns the variant of a tool under a condition, a new one where there is none.
func (p places) at(tool string, c upstream.Condition) *variant {
	i := slices.IndexFunc(p[tool], func(v *variant) bool { return v.condition == c })
	if i >= 0 {
		return p[tool][i]
	}
	v := &variant{condition: c}
	p[tool] = append(p[tool], v)
	slices.SortFunc(p[tool], func(a, b *variant) int {
		return cmp.Or(cmp.Compare(a.breadth(), b.breadth()), strings.Compare(string(a.condition), string(b.condition)))
	})
	return v
}

// breadth orders conditions: the more clients meet one, the later it is.
func (v *variant) breadth() int {
	if v.condition == "" {
		return math.MaxInt
	}
	return strings.Count(string(v.condition), ",")
}

// accepted returns the definitions that are accepted for some clients, by tool and fingerprint.
func (p places) accepted() map[string]bool {
	out := make(map[string]bool)
	for tool, all := range p {
		for _, v := range all {
			for _, fingerprint := range v.accepted {
				if v.condition != "" {
					out[tool+" "+fingerprint] = true
				}
			}
		}
	}
	return out
}

// place gives each definition its condition, and returns them without those that repeat
// another for the same clients.
func (p places) place(tools []*Tool) (out []*Tool) {
	for _, t := range tools {
		if all := p.at(t.Name, ""); !t.own {
			all.taken = append(all.taken, t)
		}
	}
	settled := make(map[*Tool]bool)
	for _, t := range tools {
		if !t.own {
			continue
		}
		if v := p.find(t, func(v *variant) bool { return slices.Contains(v.known, t.Fingerprint) }); v != nil {
			t.Condition, v.taken, settled[t] = v.condition, append(v.taken, t), true
		}
	}
	kept := make(map[string][]*Tool)
	for _, t := range tools {
		if t.own && slices.ContainsFunc(kept[t.Name], t.repeats) {
			continue
		}
		if t.own && !settled[t] {
			p.settle(t)
		}
		kept[t.Name], out = append(kept[t.Name], t), append(out, t)
	}
	return out
}

// find returns the first variant of a tool whose condition the first client of t meets and
// that is wanted, nil for none.
func (p places) find(t *Tool, wanted func(*variant) bool) *variant {
	i := slices.IndexFunc(p[t.Name], func(v *variant) bool { return v.condition.Admits(t.listedBy) && wanted(v) })
	if i < 0 {
		return nil
	}
	return p[t.Name][i]
}

// settle gives a definition that is not known a place.
func (p places) settle(t *Tool) {
	v := p.find(t, func(v *variant) bool { return !slices.ContainsFunc(v.taken, t.isApartFrom) })
	switch {
	case v != nil:
	case t.listedBy == "":
		t.Quarantine, t.unplaced = cmp.Or(t.Quarantine, otherForSome), true
		return
	case len(p[t.Name]) > maxVariants:
		t.Quarantine, t.unplaced, t.Condition = cmp.Or(t.Quarantine, tooManyVariants), true, t.listedBy
		return
	default:
		v = p.at(t.Name, t.listedBy)
	}
	t.Condition, v.taken = v.condition, append(v.taken, t)
}

// isApartFrom reports whether the server offers other next to t, to all clients or to some
// of another kind. One that clients of the same kind get, or was in the first list alone, may
// be what t was before.
func (t *Tool) isApartFrom(other *Tool) bool {
	return !other.own || other.live && other.listedBy != t.listedBy
}

// repeats reports whether t is the definition that the client of t gets from other.
func (t *Tool) repeats(other *Tool) bool {
	return t.Fingerprint == other.Fingerprint && other.Condition.Admits(t.listedBy)
}

// listedNow returns one definition for each pin: of several one that is not accepted.
func listedNow(tools []*Tool, pins map[pinKey]*Pin) (out []*Tool) {
	at := make(map[pinKey]int)
	for _, t := range tools {
		key := pinKey{t.Server, t.Name, t.Condition}
		i, found := at[key]
		switch {
		case t.unplaced || !validName(t.Name):
		case !found:
			at[key], out = len(out), append(out, t)
		case t.own && pins[key] != nil && out[i].Fingerprint == pins[key].Accepted:
			out[i] = t
		}
	}
	return out
}
