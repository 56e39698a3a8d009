package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"time"

	"github.com/toolgate/toolgate/internal/store"
)

// selectPins returns the pins of a server, or with "" all of them.
func selectPins(ctx context.Context, q store.Querier, server string) (map[pinKey]*Pin, error) {
	rows, err := store.Select(ctx, q, (*pinRow).fields, `SELECT server, tool, '', accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at, verdicts FROM pins WHERE ? = '' OR server = ?
		UNION ALL SELECT server, tool, condition, accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at, verdicts FROM pin_variants WHERE ? = '' OR server = ?`, server, server, server, server)
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
		if r.verdicts != "" {
			var v verdicts
			if err := json.Unmarshal([]byte(r.verdicts), &v); err != nil {
				return nil, fmt.Errorf("reading pins: %w", err)
			}
			if v.Accepted == r.Accepted {
				r.AcceptedBy = v.AcceptedBy
			}
			if v.Offered == r.Offered {
				r.Refused = v.Refused
			}
		}
		out[r.Pin.key()] = &r.Pin
	}
	return out, nil
}

// verdicts are what people have said of the definitions of a pin, as the store keeps it. Older
// versions of toolgate change pins without them, so each names its definition.
type verdicts struct {
	Accepted   string   `json:"accepted"` // fingerprint
	AcceptedBy string   `json:"accepted_by,omitempty"`
	Offered    string   `json:"offered,omitempty"` // fingerprint
	Refused    *Refusal `json:"refused,omitempty"`
}

// pinRow is a Pin with its times in milliseconds since 1970.
type pinRow struct {
	Pin
	acceptedAt, offeredAt int64
	verdicts              string // JSON, "" = nobody has said anything
}

func (r *pinRow) fields() []any {
	return []any{&r.Server, &r.Tool, (*string)(&r.Condition), &r.Accepted, (*[]byte)(&r.accepted), &r.acceptedAt, &r.Offered, (*[]byte)(&r.offered), &r.offeredAt, &r.verdicts}
}

// insertPin writes a pin in the place of an older one.
func insertPin(ctx context.Context, tx *sql.Tx, pin *Pin) error {
	table, key := "pins", "server, tool"
	said, err := json.Marshal(verdicts{pin.Accepted, pin.AcceptedBy, pin.Offered, pin.Refused})
	if err != nil {
		return err
	}
	values := []any{pin.Accepted, append([]byte{}, pin.accepted...), max(0, pin.AcceptedAt.UnixMilli()), pin.Offered, []byte(pin.offered), max(0, pin.OfferedAt.UnixMilli()), string(said), pin.Server, pin.Tool}
	places := "?, ?, ?, ?, ?, ?, ?, ?, ?"
	if pin.Condition != "" {
		table, key, places, values = "pin_variants", key+", condition", places+", ?", append(values, string(pin.Condition))
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO `+table+` (accepted, accepted_definition, accepted_at,
		offered, offered_definition, offered_at, verdicts, `+key+`) VALUES (`+places+`) ON CONFLICT (`+key+`) DO UPDATE SET
		accepted = excluded.accepted, accepted_definition = excluded.accepted_definition, accepted_at = excluded.accepted_at,
		offered = excluded.offered, offered_definition = excluded.offered_definition, offered_at = excluded.offered_at,
		verdicts = excluded.verdicts`, values...)
	return err
}
