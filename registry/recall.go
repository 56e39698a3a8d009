package registry

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/mcpclient"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// recall returns what a server listed last, in this process or an earlier one, nil for a
// server that was never seen: one whose origin is another now, or that has tools of which
// nothing is accepted yet. What cannot be read is not recalled.
func (r *Registry) recall(cfg config.Server) *upstream.Listing {
	if r.opts.DB == nil {
		return nil
	}
	ctx, stop := context.WithTimeout(context.Background(), pinTimeout)
	defer stop()
	type row struct {
		upstream.Listing
		tools, lists []byte
	}
	rows, err := store.Select(ctx, r.opts.DB.Read, func(l *row) []any {
		return []any{&l.tools, &l.lists, (*[]byte)(&l.Capabilities), (*[]byte)(&l.Info), &l.Instructions}
	}, `SELECT tools, lists, capabilities, info, instructions FROM listings WHERE server = ? AND origin = ?`, cfg.Name, originText(cfg))
	if err == nil && len(rows) == 1 {
		l := &rows[0]
		if l.Tools, err = mcpclient.LooseElements(l.tools); err == nil && l.lists != nil {
			if l.Lists = l.lists; !json.Valid(l.lists) {
				err = errors.New("its lists are not JSON")
			}
		}
		if err == nil && (len(l.Tools) == 0 || !r.first(cfg)) {
			return &l.Listing
		}
	}
	if err != nil {
		r.log.Warn("reading what a server listed last", "server", cfg.Name, "error", err)
	}
	return nil
}

// remember keeps what a server listed last for recall. A list that cannot be kept costs
// the next start its head start, and nothing else.
func (r *Registry) remember(e *entry) {
	if r.opts.DB == nil {
		return
	}
	r.keepMu.Lock()
	defer r.keepMu.Unlock()
	r.mu.Lock()
	cfg, l, current := e.cfg, e.listed, slices.Contains(r.entries, e)
	r.mu.Unlock()
	if !current { // another server has its name
		return
	}
	err := r.opts.DB.UpdateWithin(r.life, pinTimeout, func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO listings AS l (server, origin, tools, lists, capabilities, info, instructions) VALUES (?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (server) DO UPDATE SET origin = excluded.origin, tools = excluded.tools, lists = excluded.lists,
				capabilities = excluded.capabilities, info = excluded.info, instructions = excluded.instructions
			WHERE (l.origin, l.tools, l.lists, l.capabilities, l.info, l.instructions)
				IS DISTINCT FROM (excluded.origin, excluded.tools, excluded.lists, excluded.capabilities, excluded.info, excluded.instructions)`,
			cfg.Name, originText(cfg), []byte(jsonrpc.Array(l.Tools)), []byte(l.Lists), []byte(l.Capabilities), []byte(l.Info), l.Instructions)
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
