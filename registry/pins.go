package registry

import (
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

	"github.com/toolgate/toolgate/internal/store"
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

// changed is the reason of a quarantine by pin.
const changed = "definition changed since it was accepted"

// pinTimeout bounds one look at the store.
const pinTimeout = 5 * time.Second

// Pin is the accepted definition of one tool, and the one that the upstream
// offers if that is another. Pins are kept by configured server name and tool
// name. The first definition seen is accepted (trust on first use).
type Pin struct {
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`     // the upstream's name
	Accepted   string    `json:"accepted"` // fingerprint
	AcceptedAt time.Time `json:"accepted_at"`
	Offered    string    `json:"offered,omitempty"` // fingerprint, "" when nothing waits
	OfferedAt  time.Time `json:"offered_at,omitzero"`

	accepted, offered json.RawMessage
}

// Definition is the accepted definition, byte for byte. It is shared and must
// not be written to.
func (p *Pin) Definition() json.RawMessage { return p.accepted }

// key is what a pin is kept by.
func (p *Pin) key() pinKey { return pinKey{p.Server, p.Tool} }

// pinKey names a pin.
type pinKey struct{ server, tool string }

// Pins keeps the accepted definitions. It is safe for concurrent use, and so
// are several processes on one database.
type Pins struct {
	db       *store.DB
	now      func() time.Time
	accepted func() // called after Accept, may be nil

	mu     sync.Mutex      // protects the fields below
	memory map[pinKey]*Pin // used without db
}

// OpenPins gives the pins in db, or, when db is nil, new ones in memory.
func OpenPins(db *store.DB, now func() time.Time) *Pins {
	if now == nil {
		now = time.Now
	}
	return &Pins{db: db, now: now, memory: make(map[pinKey]*Pin)}
}

// List gives every pin by server and tool name.
func (p *Pins) List(ctx context.Context) ([]Pin, error) {
	pins, err := p.read(ctx, "")
	if err != nil {
		return nil, err
	}
	out := make([]Pin, 0, len(pins))
	for _, pin := range pins {
		out = append(out, *pin)
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
	err := p.update(ctx, server, func(pins map[pinKey]*Pin) ([]*Pin, error) {
		pin := pins[pinKey{server, tool}]
		switch {
		case pin == nil:
			return nil, ErrNoPin
		case pin.Offered == "":
			return nil, ErrNoOffer
		case fingerprint != "" && fingerprint != pin.Offered:
			return nil, ErrOtherOffer
		}
		return []*Pin{{Server: server, Tool: tool, Accepted: pin.Offered, accepted: pin.offered, AcceptedAt: p.now()}}, nil
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
// quarantines those that changed. A store that fails quarantines them all: the
// control fails closed.
func (r *Registry) pin(server string, tools []*Tool) {
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	pins, err := r.pins.admit(ctx, server, tools)
	for _, t := range tools {
		if t.Quarantine != "" {
			continue
		}
		pin := pins[pinKey{server, t.Name}]
		switch {
		case err != nil:
			t.Quarantine, t.pinned = fmt.Sprintf("its accepted definition cannot be read: %v", err), true
		case pin == nil || pin.Accepted != t.Fingerprint:
			t.pinned = true
			t.Quarantine = changed + "\nhint: compare with toolgate tool diff, then toolgate tool accept"
		}
	}
}

// admit gives the pins of a server after the tools have been noted in them:
// unknown ones are accepted, changed ones become offers.
func (p *Pins) admit(ctx context.Context, server string, tools []*Tool) (map[pinKey]*Pin, error) {
	pins, err := p.read(ctx, server)
	if err != nil || len(p.news(pins, tools)) == 0 {
		return pins, err
	}
	err = p.update(ctx, server, func(now map[pinKey]*Pin) ([]*Pin, error) {
		return p.news(now, tools), nil
	})
	if err != nil {
		return nil, err
	}
	return p.read(ctx, server)
}

// news gives the pins that tools change.
func (p *Pins) news(pins map[pinKey]*Pin, tools []*Tool) []*Pin {
	var out []*Pin
	for _, t := range tools {
		if t.Quarantine != "" {
			continue
		}
		pin := pins[pinKey{t.Server, t.Name}]
		switch {
		case pin == nil:
			out = append(out, &Pin{Server: t.Server, Tool: t.Name, Accepted: t.Fingerprint, accepted: t.Definition, AcceptedAt: p.now()})
		case pin.Accepted == t.Fingerprint && pin.Offered != "":
			back := *pin
			back.Offered, back.offered, back.OfferedAt = "", nil, time.Time{}
			out = append(out, &back)
		case pin.Accepted != t.Fingerprint && pin.Offered != t.Fingerprint:
			offer := *pin
			offer.Offered, offer.offered, offer.OfferedAt = t.Fingerprint, t.Definition, p.now()
			out = append(out, &offer)
		}
	}
	return out
}

// read gives the pins of a server, or with "" all.
func (p *Pins) read(ctx context.Context, server string) (map[pinKey]*Pin, error) {
	if p.db != nil {
		return selectPins(ctx, p.db.Read, server)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.memory), nil
}

// update changes pins in one transaction: f sees them as they are and gives
// those to write.
func (p *Pins) update(ctx context.Context, server string, f func(map[pinKey]*Pin) ([]*Pin, error)) error {
	if p.db != nil {
		return p.updateDB(ctx, server, f)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	news, err := f(maps.Clone(p.memory))
	for _, pin := range news {
		p.memory[pin.key()] = pin
	}
	return err
}

// updateDB is update with a database.
func (p *Pins) updateDB(ctx context.Context, server string, f func(map[pinKey]*Pin) ([]*Pin, error)) error {
	tx, err := p.db.Write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("opening pins: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	pins, err := selectPins(ctx, tx, server)
	if err != nil {
		return err
	}
	news, err := f(pins)
	if err != nil {
		return err
	}
	for _, pin := range news {
		if err := insertPin(ctx, tx, pin); err != nil {
			return fmt.Errorf("writing a pin: %w", err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("writing pins: %w", err)
	}
	return nil
}

// selectPins returns the pins of a server, or with "" all of them.
func selectPins(ctx context.Context, q store.Querier, server string) (map[pinKey]*Pin, error) {
	pins, err := store.Select(ctx, q, scanPin, `SELECT server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at FROM pins WHERE ?1 = '' OR server = ?1`, server)
	if err != nil {
		return nil, fmt.Errorf("reading pins: %w", err)
	}
	out := make(map[pinKey]*Pin, len(pins))
	for _, pin := range pins {
		out[pin.key()] = pin
	}
	return out, nil
}

func scanPin(rows *sql.Rows) (*Pin, error) {
	var pin Pin
	var acceptedAt, offeredAt int64
	var accepted, offered []byte
	err := rows.Scan(&pin.Server, &pin.Tool, &pin.Accepted, &accepted, &acceptedAt, &pin.Offered, &offered, &offeredAt)
	pin.accepted, pin.offered, pin.AcceptedAt = accepted, offered, time.UnixMilli(acceptedAt)
	if pin.Offered != "" {
		pin.OfferedAt = time.UnixMilli(offeredAt)
	}
	return &pin, err
}

// insertPin writes a pin in the place of an older one.
func insertPin(ctx context.Context, tx *sql.Tx, pin *Pin) error {
	offeredAt := int64(0)
	if pin.Offered != "" {
		offeredAt = pin.OfferedAt.UnixMilli()
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO pins (server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (server, tool) DO UPDATE SET accepted = excluded.accepted,
		accepted_definition = excluded.accepted_definition, accepted_at = excluded.accepted_at,
		offered = excluded.offered, offered_definition = excluded.offered_definition, offered_at = excluded.offered_at`,
		pin.Server, pin.Tool, pin.Accepted, []byte(pin.accepted), pin.AcceptedAt.UnixMilli(), pin.Offered, []byte(pin.offered), offeredAt)
	return err
}
