package registry

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// recall returns what a server listed last, in this process or an earlier one, nil for a
// server that was never seen: one whose origin is another now, or of which nothing is
// accepted yet. What cannot be read is not recalled.
func (r *Registry) recall(cfg config.Server) *upstream.Listing {
	if r.opts.DB == nil || r.first(cfg) {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	type row struct {
		upstream.Listing
		tools []byte
	}
	rows, err := store.Select(ctx, r.opts.DB.Read, func(l *row) []any {
		return []any{&l.tools, (*[]byte)(&l.Capabilities), (*[]byte)(&l.Info), &l.Instructions}
	}, `SELECT tools, capabilities, info, instructions FROM listings WHERE server = ? AND origin = ?`, cfg.Name, originText(cfg))
	if err == nil && len(rows) == 1 {
		if rows[0].Tools, err = mcpclient.LooseElements(rows[0].tools); err == nil {
			return &rows[0].Listing
		}
	}
	if err != nil {
		r.log.Warn("reading what a server listed last", "server", cfg.Name, "error", err)
	}
	return nil
}

// remember keeps a list for recall. A list that cannot be kept costs the next start its
// head start, and nothing else.
func (r *Registry) remember(cfg config.Server, l upstream.Listing) {
	if r.opts.DB == nil {
		return
	}
	err := r.opts.DB.UpdateWithin(r.life, pinTimeout, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO listings (server, origin, tools, capabilities, info, instructions) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (server) DO UPDATE SET origin = excluded.origin, tools = excluded.tools, capabilities = excluded.capabilities,
				info = excluded.info, instructions = excluded.instructions
			WHERE (origin, tools, capabilities, info, instructions)
				IS NOT (excluded.origin, excluded.tools, excluded.capabilities, excluded.info, excluded.instructions)`,
			cfg.Name, originText(cfg), arrayOf(l.Tools), []byte(l.Capabilities), []byte(l.Info), l.Instructions)
		return err
	})
	if err != nil && r.life.Err() == nil {
		r.log.Warn("keeping what a server listed", "server", cfg.Name, "error", err)
	}
}

// originText returns how mcp.json says that a server is reached.
func originText(cfg config.Server) string {
	text, _ := json.Marshal(cfg.Origin) // texts only
	return string(text)
}

// arrayOf returns the array of elements, each byte for byte.
func arrayOf(elements []json.RawMessage) []byte {
	parts := make([][]byte, len(elements))
	for i, e := range elements {
		parts[i] = e
	}
	return fmt.Appendf(nil, "[%s]", bytes.Join(parts, []byte(",")))
}
