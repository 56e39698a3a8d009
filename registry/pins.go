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
)

// The reasons of a quarantine by pin, for the operator.
const (
	changed  = "definition changed since it was accepted"
	added    = "new since the first list of the server" + lookFirst
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

// Pin is the accepted definition of one tool, and the one that the upstream
// offers if that is another. Pins are kept by configured server name and tool
// name. The definitions in the first list of a server are accepted (trust on first
// use).
type Pin struct {
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`     // the upstream's name
	Accepted   string    `json:"accepted"` // fingerprint, "" when none is accepted
	AcceptedAt time.Time `json:"accepted_at,omitzero"`
	Offered    string    `json:"offered,omitempty"` // fingerprint, "" when nothing waits
	OfferedAt  time.Time `json:"offered_at,omitzero"`
	// Differs is the path of the first member in which the two differ, such as
	// inputSchema.properties.amount.maximum; "" unless both are known. List sets it.
	Differs string `json:"differs,omitempty"`

	accepted, offered json.RawMessage
	how               string // of one that is about to be written: why its definition is accepted
	former            string // of one that is about to be written: fingerprint that the offered definition is held against
}

// The values of Acceptance.How.
const (
	HowFirst  = "first"  // in the first list of the server
	HowLock   = "lock"   // in toolgate.lock.json
	HowAccept = "accept" // by a person
)

// Acceptance is a definition that is about to be accepted.
type Acceptance struct {
	Server, Tool string // the upstream's name
	How          string // one of the constants
	Fingerprint  string
	Former       string // fingerprint of the definition that was accepted before, "" for none
}

// A Change is another definition of a tool than the accepted one. It is reported once: not
// at a later list or start that has the same.
type Change struct {
	Server, Tool      string // the upstream's name
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
type pinKey struct{ server, tool string }

// Pins keeps the accepted definitions. It is safe for concurrent use, and so
// are several processes on one database.
type Pins struct {
	db       *store.DB
	now      func() time.Time
	accepted func() // called after Accept, may be nil
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

// List gives every pin by server and tool name.
func (p *Pins) List(ctx context.Context) ([]Pin, error) {
	pins, err := p.read(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]Pin, 0, len(pins))
	for _, pin := range pins {
		listed := *pin
		if pin.Accepted != "" && pin.Offered != "" {
			listed.Differs = firstDifference(pin.accepted, pin.offered)
		}
		out = append(out, listed)
	}
	slices.SortFunc(out, func(a, b Pin) int {
		return strings.Compare(a.Server+"\x00"+a.Tool, b.Server+"\x00"+b.Tool)
	})
	return out, nil
}

// Diff gives the accepted and the offered definition of a tool, byte for byte.
// They are the same when nothing waits. The error is ErrNoPin for an unknown
// tool.
func (p *Pins) Diff(ctx context.Context, server, tool string) (accepted, offered json.RawMessage, err error) {
	pins, err := p.read(ctx, server)
	if err != nil {
		return nil, nil, err
	}
	pin := pins[pinKey{server, tool}]
	switch {
	case pin == nil:
		return nil, nil, fmt.Errorf("comparing %s of %s: %w", tool, server, ErrNoPin)
	case pin.Offered == "":
		return pin.accepted, pin.accepted, nil
	}
	return pin.accepted, pin.offered, nil
}

// Accept makes the offered definition of a tool the accepted one. A
// fingerprint that is not "" has to be that of the offered definition, so that
// what is accepted is what was looked at. Errors: ErrNoPin, ErrNoOffer,
// ErrOtherOffer.
func (p *Pins) Accept(ctx context.Context, server, tool, fingerprint string) error {
	_, err := p.update(ctx, server, func(pins map[pinKey]*Pin) ([]*Pin, error) {
		pin := pins[pinKey{server, tool}]
		switch {
		case pin == nil:
			return nil, ErrNoPin
		case pin.Offered == "":
			return nil, ErrNoOffer
		case fingerprint != "" && fingerprint != pin.Offered:
			return nil, ErrOtherOffer
		}
		return []*Pin{{Server: server, Tool: tool, Accepted: pin.Offered, accepted: pin.offered, AcceptedAt: p.now(), how: HowAccept}}, nil
	})
	if err != nil {
		return fmt.Errorf("accepting %s of %s: %w", tool, server, err)
	}
	if p.accepted != nil {
		p.accepted()
	}
	return nil
}

// pin holds the tools of a server against the accepted definitions and
// quarantines the others. What is recalled, and not fresh, is neither accepted nor
// offered by that. A store that fails quarantines them all: the control fails closed.
func (r *Registry) pin(cfg config.Server, tools []*Tool, fresh bool) {
	if cfg.Pin == config.PinStrict {
		r.pinToLock(cfg, tools, fresh)
		return
	}
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	pins, err := r.pins.read(ctx, cfg.Name)
	if err == nil && fresh {
		pins, err = r.pins.admit(ctx, cfg, pins, tools, r.locked(cfg.Name))
	}
	for _, t := range tools {
		if t.Quarantine != "" {
			continue
		}
		pin := pins[pinKey{cfg.Name, t.Name}]
		switch t.pinned = true; {
		case err != nil:
			t.Quarantine, t.withheld = fmt.Sprintf("its accepted definition cannot be read or recorded: %v", err), withheldUnknown
		case pin == nil || pin.Accepted == "":
			t.Quarantine, t.withheld = added, withheldNew
		case pin.Accepted != t.Fingerprint:
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
func (r *Registry) pinToLock(cfg config.Server, tools []*Tool, fresh bool) {
	locked := r.locked(cfg.Name)
	var pins map[pinKey]*Pin
	if fresh && locked.Origin.Equal(cfg.Origin) {
		pins = r.noteLocked(cfg, tools, locked)
	}
	for _, t := range tools {
		switch fingerprint := locked.Tools[t.Name]; {
		case t.Quarantine != "":
		case fingerprint == "":
			t.Quarantine, t.withheld = unlocked, withheldNew
		case !locked.Origin.Equal(cfg.Origin):
			t.Quarantine, t.withheld = moved, withheldChanged
		case fingerprint != t.Fingerprint:
			path := ""
			if pin := pins[pinKey{cfg.Name, t.Name}]; pin != nil && pin.Accepted == fingerprint {
				path = firstDifference(pin.accepted, t.source)
			}
			t.Quarantine, t.withheld = differs+atFirst(path)+writeLock, withheldChanged
		}
	}
}

// noteLocked records the tools of a server that is pinned by the lock in its pins, and
// returns the pins.
func (r *Registry) noteLocked(cfg config.Server, tools []*Tool, locked lock.Server) map[pinKey]*Pin {
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	pins, err := r.pins.read(ctx, cfg.Name)
	if err == nil {
		pins, err = r.pins.admit(ctx, cfg, pins, tools, locked)
	}
	if err != nil {
		r.log.Warn("recording which definitions differ from "+lock.Name, "server", cfg.Name, "error", err)
	}
	return pins
}

// Fingerprints returns the tools of a server by the server's own names, with the
// fingerprints of their definitions, those included that do not serve. What only some
// clients see, which the catalogue forgets when the server lists again, is as it is
// accepted. The error says that the pins cannot be read.
func (r *Registry) Fingerprints(ctx context.Context, server string) (map[string]string, error) {
	pins, err := r.pins.read(ctx, server)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	c := r.Catalogue()
	for key, pin := range pins {
		if key.server == server && pin.Accepted != "" && slices.ContainsFunc(c.running[server], func(e *entry) bool { return e.cfg.Offers(key.tool) }) {
			out[key.tool] = pin.Accepted
		}
	}
	for name, t := range c.byName[server] {
		if validName.MatchString(name) {
			out[name] = t.Fingerprint
		}
	}
	return out, nil
}

// Info returns how a server names itself, zero while it is not connected.
func (r *Registry) Info(server string) (info lock.Info) {
	for _, e := range r.Catalogue().running[server] {
		raw := e.server.Info()
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
	return p.update(ctx, cfg.Name, func(pins map[pinKey]*Pin) ([]*Pin, error) {
		return p.news(cfg, pins, tools, locked), nil
	})
}

// news gives the pins that tools change. A definition of which a tool was refused
// for another reason is pinned too: the reason may be a setting.
func (p *Pins) news(cfg config.Server, pins map[pinKey]*Pin, tools []*Tool, locked lock.Server) []*Pin {
	var out []*Pin
	seen, first := make(map[string]bool, len(tools)), isFirst(cfg, pins, locked)
	for _, t := range tools {
		if seen[t.Name] || !validName.MatchString(t.Name) {
			continue
		}
		seen[t.Name] = true
		pin, now := pins[pinKey{t.Server, t.Name}], Pin{Server: t.Server, Tool: t.Name}
		if pin != nil {
			now = *pin
		}
		inLock := locked.Tools[t.Name] == t.Fingerprint
		switch {
		case now.Accepted == t.Fingerprint && now.Offered == "", now.Offered == t.Fingerprint && !inLock:
			continue // as it is known
		case now.Accepted == t.Fingerprint:
		case inLock:
			now.Accepted, now.accepted, now.AcceptedAt, now.how = t.Fingerprint, t.source, p.now(), HowLock
		case first:
			now.Accepted, now.accepted, now.AcceptedAt, now.how = t.Fingerprint, t.source, p.now(), HowFirst
		default:
			now.Offered, now.offered, now.OfferedAt = t.Fingerprint, t.source, p.now()
			now.former = cmp.Or(now.Accepted, locked.Tools[t.Name])
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
// those to write. It returns the pins with the changes.
func (p *Pins) update(ctx context.Context, server string, f func(map[pinKey]*Pin) ([]*Pin, error)) (pins map[pinKey]*Pin, err error) {
	change := func(write func(*Pin) error) error {
		news, err := f(pins)
		if err == nil {
			err = p.recordAccepted(pins, news)
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
			pins[pinKey{pin.Server, pin.Tool}] = pin
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

// recordAccepted records the definitions that news accept.
func (p *Pins) recordAccepted(pins map[pinKey]*Pin, news []*Pin) error {
	var accepted []Acceptance
	for _, pin := range news {
		if pin.how == "" {
			continue
		}
		a := Acceptance{Server: pin.Server, Tool: pin.Tool, How: pin.how, Fingerprint: pin.Accepted}
		if was := pins[pinKey{pin.Server, pin.Tool}]; was != nil {
			a.Former = was.Accepted
		}
		accepted = append(accepted, a)
		pin.how = ""
	}
	if p.record == nil || len(accepted) == 0 {
		return nil
	}
	slices.SortFunc(accepted, func(a, b Acceptance) int { return strings.Compare(a.Tool, b.Tool) })
	return p.record(accepted)
}

// recordChanged reports the definitions of news that differ from the accepted ones.
func (p *Pins) recordChanged(news []*Pin) error {
	var changes []Change
	for _, pin := range news {
		if pin.former == "" {
			continue
		}
		changes = append(changes, Change{Server: pin.Server, Tool: pin.Tool, Accepted: pin.former, Offered: pin.Offered, Differs: firstDifference(pin.accepted, pin.offered)})
		pin.former = ""
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

// selectPins returns the pins of a server, or with "" all of them.
func selectPins(ctx context.Context, q store.Querier, server string) (map[pinKey]*Pin, error) {
	rows, err := store.Select(ctx, q, (*pinRow).fields, `SELECT server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at FROM pins WHERE ? = '' OR server = ?`, server, server)
	if err != nil {
		return nil, fmt.Errorf("reading pins: %w", err)
	}
	out := make(map[pinKey]*Pin, len(rows))
	for _, r := range rows {
		if r.Accepted != "" {
			r.AcceptedAt = time.UnixMilli(r.acceptedAt)
		}
		if r.Offered != "" {
			r.OfferedAt = time.UnixMilli(r.offeredAt)
		}
		out[pinKey{r.Server, r.Tool}] = &r.Pin
	}
	return out, nil
}

// pinRow is a Pin with its times in milliseconds since 1970.
type pinRow struct {
	Pin
	acceptedAt, offeredAt int64
}

func (r *pinRow) fields() []any {
	return []any{&r.Server, &r.Tool, &r.Accepted, (*[]byte)(&r.accepted), &r.acceptedAt, &r.Offered, (*[]byte)(&r.offered), &r.offeredAt}
}

// insertPin writes a pin in the place of an older one.
func insertPin(ctx context.Context, tx *sql.Tx, pin *Pin) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO pins (server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (server, tool) DO UPDATE SET
		accepted = excluded.accepted, accepted_definition = excluded.accepted_definition, accepted_at = excluded.accepted_at,
		offered = excluded.offered, offered_definition = excluded.offered_definition, offered_at = excluded.offered_at`, pin.Server, pin.Tool, pin.Accepted,
		append([]byte{}, pin.accepted...), max(0, pin.AcceptedAt.UnixMilli()), pin.Offered, []byte(pin.offered), max(0, pin.OfferedAt.UnixMilli()))
	return err
}
