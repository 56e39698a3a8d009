package trail

import (
	"path/filepath"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/registry/config"
)

// Index returns where the index of the trail of cfg is: in db where replicas share one, else in a file. name is the
// trail's.
func Index(cfg *config.Config, name string, db *store.DB) index.Options {
	o := index.Options{Trail: Dir(cfg.State), Owner: name, File: filepath.Join(cfg.State, "index", "calls.db"), Lock: filepath.Join(cfg.State, "instances", "index")}
	if db != nil && db.Shared() {
		o.DB = db
	}
	return o
}
