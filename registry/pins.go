package registry

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// Errors of Pins.
var (
	// ErrNoPin is in the chain when no definition was ever seen under a name.
	ErrNoPin = errors.New("no definition of this tool has been seen")
	// ErrNoOffer is in the chain when the accepted definition is the offered one.
	ErrNoOffer = errors.New("the tool has no definition that waits to be accepted")
	// ErrOtherOffer is in the chain when the offered definition is not the one
	// that was named.
	ErrOtherOffer = errors.New("the server offers yet another definition by now")
	// ErrOffers is in the chain when several definitions of a tool wait to be accepted, and
	// none was named.
	ErrOffers = errors.New("several definitions of this tool wait to be accepted\nhint: name one with --fingerprint; toolgate tool diff lists them")
)

// The reasons of a quarantine by pin, for the operator.
const (
	changed  = "definition changed since it was accepted"
	added    = "new since the first list of the server" + lookFirst
	varied   = "nobody has accepted this definition, which the server offers to some clients only"
	unlocked = "it is not in " + lock.Name + writeLock
	differs  = "its definition differs from the one in " + lock.Name
	moved    = "mcp.json starts or reaches its server otherwise than " + lock.Name + " says" + writeLock

	lookFirst = "\nhint: compare with toolgate tool diff, then toolgate tool accept"
	writeLock = "\nhint: compare with toolgate lock --check, then toolgate lock"
)

// The reasons of a quarantine by pin, for agents.
const (
	withheldChanged = "the tool is withheld until an operator accepts its changed definition"
	withheldNew     = "the tool is withheld until an operator accepts its definition"
	withheldUnknown = "the tool is withheld until toolgate can read which definition is accepted"
)

// maxChanges bounds the changes of one list that are reported one by one.
const maxChanges = 100

// pinTimeout bounds one look at the store.
const pinTimeout = 5 * time.Second

// Pin is the accepted definition of one tool under one condition, and the one that the
// upstream offers if that is another. Pins are kept by configured server name, tool name and
// condition: a tool has as many as it has definitions for different clients. The
// definitions in the first list of a server are accepted (trust on first use).
type Pin struct {
	Server string `json:"server"`
	Tool   string `json:"tool"` // the upstream's name
	// Condition says which clients the definitions are for, "" for all.
	Condition  upstream.Condition `json:"condition,omitempty"`
	Accepted   string             `json:"accepted"` // fingerprint, "" when none is accepted
	AcceptedAt time.Time          `json:"accepted_at,omitzero"`
	AcceptedBy string             `json:"accepted_by,omitempty"` // who accepted it, "" = nobody: it was in the first list or in the lock
	Offered    string             `json:"offered,omitempty"`     // fingerprint, "" when nothing waits
	OfferedAt  time.Time          `json:"offered_at,omitzero"`
	// Refused says that a person does not accept the offered definition; nil = nobody has said so.
	Refused *Refusal `json:"refused,omitempty"`
	// Differs is the path of the first member in which the two differ, such as
	// inputSchema.properties.amount.maximum; "" unless both are known. Of a Condition under
	// which none is accepted, it compares with what is accepted for all clients. List sets it.
	Differs string `json:"differs,omitempty"`

	accepted, offered json.RawMessage
	how               string          // of one that is about to be written: why its definition is accepted, or that it is refused
	former            string          // of one that is about to be written: fingerprint that the offered definition is held against
	formerly          json.RawMessage // definition of former, nil when it is not known
}

// A Refusal is a person's word that the offered definition is not accepted. It is kept until
// another one is offered, or until it is accepted nevertheless.
type Refusal struct {
	By     string    `json:"by"`
	Reason string    `json:"reason"`
	At     time.Time `json:"at"`
}

// Label names the pin for people: the tool, and which clients its definitions are for.
func (p *Pin) Label() string { return label(p.Tool, p.Condition) }

// The values of Acceptance.How.
const (
	HowFirst  = "first"  // in the first list of the server
	HowLock   = "lock"   // in toolgate.lock.json
	HowAccept = "accept" // by a person
	HowRefuse = "refuse" // it is not: a person refuses it
)

// Acceptance is a definition that is about to be accepted or refused.
type Acceptance struct {
	Server, Tool string // the upstream's name
	Condition    upstream.Condition
	How          string // one of the constants
	Fingerprint  string
	Former       string // fingerprint of the definition that was accepted before, "" for none
	Reason       string // of HowRefuse
}

// A Change is another definition of a tool than the accepted one. It is reported once: not
// at a later list or start that has the same.
type Change struct {
	Server, Tool      string // the upstream's name
	Condition         upstream.Condition
	Accepted, Offered string // fingerprints
	// Differs is the path of the first member that differs, "" when the accepted definition
	// is known by its fingerprint only.
	Differs string
	Count   int // changes of the server that this one stands for; 0 = one
}

// Definition is the accepted definition, or the offered one where none is accepted, byte
// for byte. It is shared and must not be written to.
func (p *Pin) Definition() json.RawMessage {
	if p.Accepted == "" {
		return p.offered
	}
	return p.accepted
}

// pinKey names a pin.
type pinKey struct {
	server, tool string
	condition    upstream.Condition
}

func (p *Pin) key() pinKey { return pinKey{p.Server, p.Tool, p.Condition} }

// base returns the pin against which the offered definition of pin is held: itself, or
// where it has accepted none, that for all clients.
func (p *Pin) base(pins map[pinKey]*Pin) *Pin {
	if all := pins[pinKey{p.Server, p.Tool, ""}]; p.Accepted == "" && all != nil {
		return all
	}
	return p
}

// Pins keeps the accepted definitions. It is safe for concurrent use, and so
// are several processes on one database.
type Pins struct {
	db       *store.DB
	now      func() time.Time
	accepted func() // called after Judge, may be nil
	record   func([]Acceptance) error
	changed  func([]Change) error // called with the changes of one server that are about to be kept, may be nil

	mu     sync.Mutex      // protects the fields below
	memory map[pinKey]*Pin // used without db
}

// OpenPins gives the pins in db, or, when db is nil, new ones in memory. Record is
// called with the definitions of one server that are about to be accepted, and keeps
// them out with its error; nil records nothing.
func OpenPins(db *store.DB, now func() time.Time, record func([]Acceptance) error) *Pins {
	if now == nil {
		now = time.Now
	}
	return &Pins{db: db, now: now, record: record, memory: make(map[pinKey]*Pin)}
}

// List gives every pin by server, tool name and condition.
func (p *Pins) List(ctx context.Context) ([]Pin, error) {
	pins, err := p.read(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]Pin, 0, len(pins))
	for _, pin := range pins {
		listed := *pin
		if base := pin.base(pins); base.Accepted != "" && pin.Offered != "" {
			listed.Differs = firstDifference(base.accepted, pin.offered)
		}
		out = append(out, listed)
	}
	slices.SortFunc(out, func(a, b Pin) int {
		return cmp.Or(strings.Compare(a.Server, b.Server), strings.Compare(a.Tool, b.Tool), strings.Compare(string(a.Condition), string(b.Condition)))
	})
	return out, nil
}

// Diff gives the accepted and the offered definition of a tool, byte for byte.
// They are the same when nothing waits. Where nothing is accepted for the clients of the
// offered definition, the accepted one is that for all clients. Which of several
// definitions is compared, and the errors, are those of Judge without ErrNoOffer.
func (p *Pins) Diff(ctx context.Context, server, tool, fingerprint string) (accepted, offered json.RawMessage, err error) {
	pins, err := p.read(ctx, server)
	if err != nil {
		return nil, nil, err
	}
	waiting, err := waiting(pins, server, tool, fingerprint)
	if errors.Is(err, ErrNoOffer) {
		all := &Pin{Server: server, Tool: tool}
		return all.base(pins).accepted, all.base(pins).accepted, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("comparing %s of %s: %w", tool, server, err)
	}
	return waiting[0].base(pins).accepted, waiting[0].offered, nil
}

// waiting returns the pins of a tool whose offered definition has a fingerprint, which may
// be "" while one definition waits. It returns at least one, or an error.
func waiting(pins map[pinKey]*Pin, server, tool, fingerprint string) (found []*Pin, err error) {
	known, offers := false, make(map[string]bool)
	for key, pin := range pins {
		if key.server != server || key.tool != tool {
			continue
		}
		if known = true; pin.Offered == "" {
			continue
		}
		if offers[pin.Offered] = true; fingerprint == "" || fingerprint == pin.Offered {
			found = append(found, pin)
		}
	}
	switch {
	case !known:
		return nil, ErrNoPin
	case len(offers) == 0:
		return nil, ErrNoOffer
	case len(found) == 0:
		return nil, ErrOtherOffer
	case fingerprint == "" && len(offers) > 1:
		return nil, ErrOffers
	}
	return found, nil
}

// A Verdict is what a person says of an offered definition.
type Verdict struct {
	Server, Tool string
	// Fingerprint is that of an offered definition, so that what is judged is what was looked at;
	// "" = the one that waits.
	Fingerprint string
	By          string // who says so
	Refuse      bool   // it is not accepted
	Reason      string // of a refusal
	// Record records the verdict, and its error undoes it; nil = as OpenPins says.
	Record func([]Acceptance) error
}

// Judge makes an offered definition of a tool the accepted one, for the clients that it is offered
// to, or keeps a refusal: the tool stays withheld. Errors: ErrNoPin, ErrNoOffer, ErrOtherOffer,
// ErrOffers.
func (p *Pins) Judge(ctx context.Context, v Verdict) error {
	judged := func(pins map[pinKey]*Pin) (out []*Pin, err error) {
		waiting, err := waiting(pins, v.Server, v.Tool, v.Fingerprint)
		for _, pin := range waiting {
			now := &Pin{Server: v.Server, Tool: v.Tool, Condition: pin.Condition, Accepted: pin.Offered, accepted: pin.offered, AcceptedAt: p.now(), AcceptedBy: v.By, how: HowAccept}
			if v.Refuse {
				refused := *pin
				now, refused.Refused, refused.how = &refused, &Refusal{v.By, v.Reason, p.now().UTC()}, HowRefuse
			}
			out = append(out, now)
		}
		return out, err
	}
	record := p.record
	if v.Record != nil {
		record = v.Record
	}
	if _, err := p.update(ctx, v.Server, record, judged); err != nil {
		return fmt.Errorf("judging %s of %s: %w", v.Tool, v.Server, err)
	}
	if p.accepted != nil {
		p.accepted()
	}
	return nil
}

// pin gives the tools of a server their places among the pins, holds them against the
// accepted definitions and quarantines the others. What is recalled, and not fresh, is
// neither accepted nor offered by that. A store that fails quarantines them all: the
// control fails closed. It returns the tools without repetitions.
func (r *Registry) pin(e *entry, all []*Tool) (tools []*Tool) {
	cfg, locked := e.cfg, r.locked(e.cfg.Name)
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	var pins map[pinKey]*Pin
	var err error
	if cfg.Pin == config.PinOff {
		locked = lock.Server{}
	} else {
		pins, err = r.pins.read(ctx, cfg.Name)
	}
	places := placesOf(cfg.Name, pins, locked)
	tools = places.place(all)
	if err == nil && e.fresh && cfg.Pin != config.PinOff && (cfg.Pin != config.PinStrict || locked.Origin.Equal(cfg.Origin)) {
		pins, err = r.pins.admit(ctx, cfg, pins, tools, locked)
	}
	switch cfg.Pin {
	case config.PinOff:
	case config.PinStrict:
		if err != nil {
			r.log.Warn("recording which definitions differ from "+lock.Name, "server", cfg.Name, "error", err)
		}
		pinToLock(cfg, tools, pins, locked)
	default:
		pinToState(cfg, tools, pins, err)
	}
	e.known, e.variants = make(map[string][]upstream.Condition, len(tools)), places.accepted()
	for _, t := range tools {
		e.known[t.Form] = append(e.known[t.Form], t.Condition)
	}
	return tools
}

// pinToState quarantines what the pins do not accept, or with err everything.
func pinToState(cfg config.Server, tools []*Tool, pins map[pinKey]*Pin, err error) {
	for _, t := range tools {
		if t.Quarantine != "" {
			continue
		}
		pin := pins[pinKey{cfg.Name, t.Name, t.Condition}]
		if pin == nil {
			pin = &Pin{Server: cfg.Name, Tool: t.Name, Condition: t.Condition}
		}
		base := pin.base(pins)
		switch t.pinned = true; {
		case err != nil:
			t.Quarantine, t.withheld = fmt.Sprintf("its accepted definition cannot be read or recorded: %v", err), withheldUnknown
		case base.Accepted == "":
			t.Quarantine, t.withheld = added, withheldNew
		case base != pin:
			t.Quarantine, t.withheld = varied+atFirst(firstDifference(base.accepted, t.source))+lookFirst, withheldNew
		case pin.Accepted != t.Fingerprint:
			t.former = pin.Accepted
			t.Quarantine, t.withheld = changed+atFirst(firstDifference(pin.accepted, t.source))+lookFirst, withheldChanged
		default:
			t.pinned = false
		}
	}
}

// atFirst says in a reason where two definitions differ, "" when that is unknown.
func atFirst(path string) string {
	if path == "" {
		return ""
	}
	return "; it differs first in " + path
}

// pinToLock quarantines what the lock does not hold. The pins decide nothing here: they
// keep the definitions that were in the lock, and which changes were reported.
func pinToLock(cfg config.Server, tools []*Tool, pins map[pinKey]*Pin, locked lock.Server) {
	for _, t := range tools {
		switch fingerprint := locked.Fingerprint(t.Name, string(t.Condition)); {
		case t.Quarantine != "":
		case fingerprint == "":
			t.Quarantine, t.withheld = unlocked, withheldNew
		case !locked.Origin.Equal(cfg.Origin):
			t.Quarantine, t.withheld = moved, withheldChanged
		case fingerprint != t.Fingerprint:
			path := ""
			if pin := pins[pinKey{cfg.Name, t.Name, t.Condition}]; pin != nil && pin.Accepted == fingerprint {
				path = firstDifference(pin.accepted, t.source)
			}
			t.former = fingerprint
			t.Quarantine, t.withheld = differs+atFirst(path)+writeLock, withheldChanged
		}
	}
}

// Fingerprints returns what a lock has of the tools of a server, those included that do
// not serve: the fingerprints of their definitions. What only some clients see, which the
// catalogue forgets when the server lists again, is as it is accepted. The error says that
// the pins cannot be read.
func (r *Registry) Fingerprints(ctx context.Context, server string) (lock.Server, error) {
	out := lock.Server{Tools: make(map[string]string)}
	pins, err := r.pins.read(ctx, server)
	if err != nil {
		return out, err
	}
	c := r.Catalogue()
	for key, pin := range pins {
		if key.server == server && pin.Accepted != "" && slices.ContainsFunc(c.running[server], func(e *entry) bool { return e.cfg.Offers(key.tool) }) {
			out.Add(key.tool, string(key.condition), pin.Accepted)
		}
	}
	for name, definitions := range c.byName[server] {
		for _, t := range slices.Backward(definitions) { // the first of two with one condition counts
			if validName(name) {
				out.Add(name, string(t.Condition), t.Fingerprint)
			}
		}
	}
	return out, nil
}

// Info returns how a server names itself, zero while it is not connected.
func (r *Registry) Info(server string) (info lock.Info) {
	for _, e := range r.Catalogue().running[server] {
		raw := e.listed.Info
		if e.server != nil {
			raw = e.server.Info()
		}
		info.Name, _ = jsonrpc.TextAt(raw, "name")
		info.Version, _ = jsonrpc.TextAt(raw, "version")
	}
	return info
}

// locked returns what the lock holds of a server.
func (r *Registry) locked(server string) lock.Server {
	if r.lock == nil {
		return lock.Server{}
	}
	return r.lock.Servers[server]
}

// first reports whether no definition of a server has been accepted so far, so that
// its next list is its first one.
func (r *Registry) first(cfg config.Server) bool {
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	pins, err := r.pins.read(ctx, cfg.Name)
	return err == nil && cfg.Pin == config.PinFirst && isFirst(cfg, pins, r.locked(cfg.Name))
}

// isFirst reports whether the next list of a server is accepted as its first one, because
// nothing of the server has been accepted.
func isFirst(cfg config.Server, pins map[pinKey]*Pin, locked lock.Server) bool {
	for _, pin := range pins {
		if pin.Server == cfg.Name && pin.Accepted != "" {
			return false
		}
	}
	return cfg.Pin != config.PinStrict && len(locked.Tools) == 0
}

// admit returns the pins of a server after the tools have been recorded in them:
// those of the first list and of the lock are accepted, and what else is new or
// changed becomes an offer.
func (p *Pins) admit(ctx context.Context, cfg config.Server, pins map[pinKey]*Pin, tools []*Tool, locked lock.Server) (map[pinKey]*Pin, error) {
	if len(p.news(cfg, pins, tools, locked)) == 0 {
		return pins, nil
	}
	return p.update(ctx, cfg.Name, p.record, func(pins map[pinKey]*Pin) ([]*Pin, error) {
		return p.news(cfg, pins, tools, locked), nil
	})
}

// news gives the pins that tools change. A definition of which a tool was refused
// for another reason is pinned too: the reason may be a setting.
func (p *Pins) news(cfg config.Server, pins map[pinKey]*Pin, tools []*Tool, locked lock.Server) []*Pin {
	var out []*Pin
	first := isFirst(cfg, pins, locked)
	for _, t := range listedNow(tools, pins) {
		now := Pin{Server: t.Server, Tool: t.Name, Condition: t.Condition}
		if pin := pins[now.key()]; pin != nil {
			now = *pin
		}
		now.Refused = nil // for any other offer
		inLock := locked.Fingerprint(t.Name, string(t.Condition)) == t.Fingerprint
		first := first && !t.unproven
		switch {
		case now.Accepted == t.Fingerprint && now.Offered == "", now.Offered == t.Fingerprint && !inLock && !first:
			continue // as it is known
		case now.Accepted == t.Fingerprint:
		case inLock:
			now.Accepted, now.accepted, now.AcceptedAt, now.AcceptedBy, now.how = t.Fingerprint, t.source, p.now(), "", HowLock
		case first:
			now.Accepted, now.accepted, now.AcceptedAt, now.AcceptedBy, now.how = t.Fingerprint, t.source, p.now(), "", HowFirst
		default:
			now.Offered, now.offered, now.OfferedAt = t.Fingerprint, t.source, p.now()
			base := now.base(pins)
			now.former, now.formerly = cmp.Or(base.Accepted, locked.Fingerprint(t.Name, string(t.Condition))), base.accepted
			out = append(out, &now)
			continue
		}
		now.Offered, now.offered, now.OfferedAt = "", nil, time.Time{}
		out = append(out, &now)
	}
	return out
}

// read returns the pins of a server, or with "" all of them.
func (p *Pins) read(ctx context.Context, server string) (map[pinKey]*Pin, error) {
	if p.db != nil {
		return selectPins(ctx, p.db.Read, server)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.memory), nil
}

// update changes pins in one transaction: f gets them as they are and returns
// those to write, and record those that are accepted or refused by that. It returns the pins with
// the changes.
func (p *Pins) update(ctx context.Context, server string, record func([]Acceptance) error, f func(map[pinKey]*Pin) ([]*Pin, error)) (pins map[pinKey]*Pin, err error) {
	change := func(write func(*Pin) error) error {
		news, err := f(pins)
		if err == nil {
			err = recordAccepted(record, pins, news)
		}
		if err == nil {
			err = p.recordChanged(news)
		}
		if err != nil {
			return err
		}
		for _, pin := range news {
			if err = write(pin); err != nil {
				return fmt.Errorf("writing a pin: %w", err)
			}
			pins[pin.key()] = pin
		}
		return err
	}
	if p.db == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		pins = p.memory
		err = change(func(*Pin) error { return nil })
		return maps.Clone(pins), err
	}
	err = p.db.Update(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if err := p.db.Lock(ctx, tx, "pins"); err != nil {
			return err
		}
		if pins, err = selectPins(ctx, tx, server); err != nil {
			return err
		}
		return change(func(pin *Pin) error { return insertPin(ctx, tx, pin) })
	})
	return pins, err
}

// recordAccepted records the definitions that news accept or refuse.
func recordAccepted(record func([]Acceptance) error, pins map[pinKey]*Pin, news []*Pin) error {
	var accepted []Acceptance
	for _, pin := range news {
		if pin.how == "" {
			continue
		}
		a := Acceptance{Server: pin.Server, Tool: pin.Tool, Condition: pin.Condition, How: pin.how, Fingerprint: pin.Accepted}
		if pin.how == HowRefuse {
			a.Fingerprint, a.Reason = pin.Offered, pin.Refused.Reason
		}
		if was := pins[pin.key()]; was != nil {
			a.Former = was.Accepted
		}
		accepted = append(accepted, a)
		pin.how = ""
	}
	if record == nil || len(accepted) == 0 {
		return nil
	}
	slices.SortFunc(accepted, func(a, b Acceptance) int {
		return cmp.Or(strings.Compare(a.Tool, b.Tool), strings.Compare(string(a.Condition), string(b.Condition)))
	})
	return record(accepted)
}

// recordChanged reports the definitions of news that differ from the accepted ones.
func (p *Pins) recordChanged(news []*Pin) error {
	var changes []Change
	for _, pin := range news {
		if pin.former == "" {
			continue
		}
		changes = append(changes, Change{Server: pin.Server, Tool: pin.Tool, Condition: pin.Condition, Accepted: pin.former, Offered: pin.Offered, Differs: firstDifference(pin.formerly, pin.offered)})
		pin.former, pin.formerly = "", nil
	}
	if p.changed == nil || len(changes) == 0 {
		return nil
	}
	if all := len(changes); all > maxChanges {
		changes = changes[:maxChanges]
		changes[maxChanges-1].Count = all - maxChanges + 1
	}
	return p.changed(changes)
}
