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

// admit returns the pins of a server after the tools have been recorded in them:
// unknown ones are accepted, changed ones become offers.
func (p *Pins) admit(ctx context.Context, server string, tools []*Tool) (map[pinKey]*Pin, error) {
	pins, err := p.read(ctx, server)
	if err != nil || len(p.news(pins, tools)) == 0 {
		return pins, err
	}
	return p.update(ctx, server, func(pins map[pinKey]*Pin) ([]*Pin, error) { return p.news(pins, tools), nil })
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
		if pins, err = selectPins(ctx, tx, server); err != nil {
			return err
		}
		return change(func(pin *Pin) error { return insertPin(ctx, tx, pin) })
	})
	return pins, err
}

// selectPins returns the pins of a server, or with "" all of them.
func selectPins(ctx context.Context, q store.Querier, server string) (map[pinKey]*Pin, error) {
	rows, err := store.Select(ctx, q, (*pinRow).fields, `SELECT server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at FROM pins WHERE ?1 = '' OR server = ?1`, server)
	if err != nil {
		return nil, fmt.Errorf("reading pins: %w", err)
	}
	out := make(map[pinKey]*Pin, len(rows))
	for _, r := range rows {
		if r.AcceptedAt = time.UnixMilli(r.acceptedAt); r.Offered != "" {
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
	_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO pins (server, tool, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at) VALUES (?, ?, ?, ?, ?, ?, ?, max(0, ?))`, pin.Server, pin.Tool, pin.Accepted,
		[]byte(pin.accepted), pin.AcceptedAt.UnixMilli(), pin.Offered, []byte(pin.offered), pin.OfferedAt.UnixMilli())
	return err
}
