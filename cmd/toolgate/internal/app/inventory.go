package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/registry/config"
)

// inventory is what a configuration brings and who may do something by it, by the event
// that records a change. It names secrets by the beginning of their hash.
type inventory map[string][]string

func inventoryOf(cfg *config.Config, revision string) inventory {
	things := []string{"configuration " + cfg.SHA256[:min(12, len(cfg.SHA256))]}
	for _, t := range cfg.Identity.Tokens {
		things = append(things, fmt.Sprintf("token %s %s roles %s", t.Subject, t.SHA256[:min(12, len(t.SHA256))], strings.Join(t.Roles, ",")))
	}
	for _, j := range cfg.Identity.JWT {
		things = append(things, "issuer "+j.Issuer)
	}
	for _, s := range cfg.Servers {
		things = append(things, "server "+s.Name)
	}
	slices.Sort(things)
	return inventory{audit.EventConfiguration: things, audit.EventPolicy: {"policy " + revision}}
}

// recordInventory compares configuration and policy with the last ones that served this
// state, in any process, and records the difference. Without earlier ones it records
// nothing.
func (a *App) recordInventory() {
	path := filepath.Join(a.state.ledger, "inventory.json")
	now := inventoryOf(a.Config(), a.Revision())
	before, known, err := readInventory(path)
	for _, name := range []string{audit.EventConfiguration, audit.EventPolicy} {
		e := &audit.Event{Name: name, Added: without(now[name], before[name]), Removed: without(before[name], now[name])}
		if known && len(e.Added)+len(e.Removed) > 0 {
			a.recordEvent(e)
		}
	}
	if text, _ := json.Marshal(now); err == nil {
		err = files.Replace(path, text, 0o600)
	}
	if err != nil {
		a.log.Error("noting what serves", "error", err)
	}
}

func readInventory(path string) (i inventory, known bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err == nil && json.Unmarshal(text, &i) != nil {
		i = nil // then everything is new
	}
	return i, err == nil, err
}

// without returns the things that are not among others.
func without(things, others []string) []string {
	return slices.DeleteFunc(slices.Clone(things), func(s string) bool { return slices.Contains(others, s) })
}

// recordRefusal records that what was read does not serve.
func (a *App) recordRefusal(err error) {
	text := err.Error()
	a.recordEvent(&audit.Event{Name: audit.EventReloadRefused, Reason: strings.ToValidUTF8(text[:min(len(text), maxReason)], "")})
}

// maxReason bounds the reason of a refusal in the trail, in bytes.
const maxReason = 2000
