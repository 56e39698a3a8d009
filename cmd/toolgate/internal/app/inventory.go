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
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/files"
)

// inventory knows what served this state before. It is safe for concurrent use.
type inventory struct {
	*serving
	state *state
}

// record compares configuration and policy with the last ones that served this
// state, in any process, and records the difference: what a configuration brings and who may do
// something by it. It names secrets by the beginning of their hash. Without earlier ones it records
// nothing.
func (i *inventory) record() {
	cfg := i.Config()
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
	now := map[string][]string{audit.EventConfiguration: things, audit.EventPolicy: {"policy " + i.Revision()}}
	var before map[string][]string
	path := filepath.Join(i.state.ledger, inventoryName)
	text, err := os.ReadFile(path)
	known := err == nil
	if known && json.Unmarshal(text, &before) != nil {
		before = nil // then everything is new
	}
	for _, name := range []string{audit.EventConfiguration, audit.EventPolicy} {
		e := &audit.Event{Name: name, Added: without(now[name], before[name]), Removed: without(before[name], now[name])}
		if known && len(e.Added)+len(e.Removed) > 0 {
			i.state.recordEvent(e)
		}
	}
	now[servedPolicies] = served(before[servedPolicies], i.Revision(), time.Now())
	if known || errors.Is(err, fs.ErrNotExist) {
		text, _ = json.Marshal(now)
		err = files.Replace(path, text, 0o600)
	}
	if err != nil {
		i.log.Error("noting what serves", "error", err)
	}
}

const (
	inventoryName  = "inventory.json"
	servedPolicies = "served_policies" // member of the inventory: "<time> <revision>", the latest last
	keptRevisions  = 50
)

// served returns all with the policy that serves now, unless it is the last of them.
func served(all []string, revision string, now time.Time) []string {
	if len(all) == 0 || !strings.HasSuffix(all[len(all)-1], " "+revision) {
		all = append(all, now.UTC().Format(time.RFC3339)+" "+revision)
	}
	return all[max(0, len(all)-keptRevisions):]
}

// policies returns the last policies that served this state, the latest first.
func (i *inventory) policies() []console.ServedPolicy {
	all := []console.ServedPolicy{}
	var known map[string][]string
	text, err := os.ReadFile(filepath.Join(i.state.ledger, inventoryName))
	if err != nil || json.Unmarshal(text, &known) != nil {
		return all // record has logged the cause
	}
	for _, line := range slices.Backward(known[servedPolicies]) {
		at, revision, _ := strings.Cut(line, " ")
		since, err := time.Parse(time.RFC3339, at)
		if err == nil {
			all = append(all, console.ServedPolicy{Revision: revision, Since: since})
		}
	}
	return all
}

// without returns the things that are not among others.
func without(things, others []string) []string {
	return slices.DeleteFunc(slices.Clone(things), func(s string) bool { return slices.Contains(others, s) })
}

// recordRefusal records that what was read does not serve.
func (i *inventory) recordRefusal(err error) {
	const most = 2000 // bytes of the reason
	text := err.Error()
	i.state.recordEvent(&audit.Event{Name: audit.EventReloadRefused, Reason: strings.ToValidUTF8(text[:min(len(text), most)], "")})
}
