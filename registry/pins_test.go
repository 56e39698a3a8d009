package registry_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

// database opens a state file.
func database(t *testing.T, path string) *store.DB {
	t.Helper()
	db, err := postgres.State(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

var (
	oldTool = recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"old","inputSchema":{"type":"object"}}`)}
	newTool = recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"new","inputSchema":{"type":"object"}}`)}
)

// The first definition is accepted; a changed one does not serve, is not
// called, and can be compared; accepted, it serves. In memory and in a file.
func TestPin(t *testing.T) {
	for _, kept := range []string{"memory", "file"} {
		t.Run(kept, func(t *testing.T) {
			var opts registry.Options
			if kept == "file" {
				opts.DB = database(t, filepath.Join(t.TempDir(), "state.db"))
			}
			rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool, {Name: "b"}}})
			r := open(t, opts)
			apply(t, r, server("s", rec))
			awaitTools(t, r, "s__a", "s__b")
			accepted, _ := r.Catalogue().Lookup("", "s__a")
			await(t, "stream", func() bool { return rec.Streams() > 0 })
			rec.SetTools(true, newTool, recorder.Tool{Name: "b"})
			awaitTools(t, r, "s__b")
			quarantined := r.Catalogue().Quarantined()
			if len(quarantined) != 1 || !strings.HasPrefix(quarantined[0].Quarantine, "definition changed since it was accepted") {
				t.Fatalf("quarantined %+v", quarantined)
			}
			if got := quarantined[0].Refusal(); got != "the tool is withheld until an operator accepts its changed definition" {
				t.Errorf("agents read %q", got)
			}
			for _, tool := range []*registry.Tool{accepted, quarantined[0]} {
				if _, e := forwardTool(r, tool, `{}`); e == nil || e.Kind != registry.Quarantined || e.Sent {
					t.Errorf("called: %v", e)
				}
			}
			if got := len(rec.Calls()); got != 0 {
				t.Errorf("%d calls arrived, want none", got)
			}
			checkAccept(t, r)
			awaitTools(t, r, "s__a", "s__b")
			if _, e := forward(r, "s__a", `{}`); e != nil {
				t.Error(e)
			}
		})
	}
}

// checkAccept compares and accepts the changed definition.
func checkAccept(t *testing.T, r *registry.Registry) {
	t.Helper()
	ctx := context.Background()
	before, after, err := r.Pins().Diff(ctx, "s", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{string(oldTool.Definition), string(newTool.Definition)}, []string{string(before), string(after)}); diff != "" {
		t.Error(diff)
	}
	for _, tc := range []struct {
		server, tool, fingerprint string
		want                      error
	}{
		{"s", "zzz", "", registry.ErrNoPin},
		{"zzz", "a", "", registry.ErrNoPin},
		{"s", "b", "", registry.ErrNoOffer},
		{"s", "a", "sha256:other", registry.ErrOtherOffer},
		{"s", "a", r.Catalogue().Quarantined()[0].Fingerprint, nil},
		{"s", "a", "", registry.ErrNoOffer},
	} {
		if err := r.Pins().Judge(ctx, registry.Verdict{Server: tc.server, Tool: tc.tool, Fingerprint: tc.fingerprint}); !errors.Is(err, tc.want) {
			t.Errorf("accepting %s of %s with %q: %v, want %v", tc.tool, tc.server, tc.fingerprint, err, tc.want)
		}
	}
	pins, err := r.Pins().List(ctx)
	if err != nil || len(pins) != 2 || pins[0].Tool != "a" || pins[0].Offered != "" {
		t.Errorf("pins %+v, error %v", pins, err)
	}
}

// A definition that changed while we were not running is held against the pin
// of the last run; another process may accept it.
func TestPinSurvives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	first := open(t, registry.Options{DB: database(t, path)})
	apply(t, first, server("s", rec))
	awaitTools(t, first, "s__a")
	first.Close(context.Background())
	rec.SetTools(false, newTool)
	second := open(t, registry.Options{DB: database(t, path)})
	apply(t, second, server("s", rec))
	await(t, "quarantine", func() bool { return len(second.Catalogue().Quarantined()) == 1 })
	other := registry.OpenPins(database(t, path), nil, nil)
	if err := other.Judge(context.Background(), registry.Verdict{Server: "s", Tool: "a"}); err != nil {
		t.Fatal(err)
	}
	awaitTools(t, second, "s__a")
}

// A refusal is kept, here and for other processes, until the server offers another definition or
// somebody accepts this one. Who accepted it is kept too. What is not recorded is not done.
func TestRefuse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	r := open(t, registry.Options{DB: database(t, path)})
	apply(t, r, server("s", rec))
	awaitTools(t, r, "s__a")
	await(t, "stream", func() bool { return rec.Streams() > 0 })
	offer := func(tool recorder.Tool) string {
		rec.SetTools(true, tool)
		fingerprint := upstream.Fingerprint(tool.Definition)
		await(t, "the offer", func() bool {
			pins, err := r.Pins().List(t.Context())
			return err == nil && pins[0].Offered == fingerprint
		})
		return fingerprint
	}
	judge := func(v registry.Verdict) (recorded []registry.Acceptance, err error) {
		v.Server, v.Tool = "s", "a"
		v.Record = func(all []registry.Acceptance) error {
			recorded = all
			if v.By == "nobody" {
				return errors.New("disk full")
			}
			return nil
		}
		return recorded, r.Pins().Judge(t.Context(), v)
	}
	kept := func() registry.Pin {
		pins, err := registry.OpenPins(database(t, path), nil, nil).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return pins[0]
	}
	second := offer(newTool)
	if _, err := judge(registry.Verdict{By: "nobody", Refuse: true, Reason: "r"}); err == nil || kept().Refused != nil {
		t.Errorf("refused without a record: %v", err)
	}
	if _, err := judge(registry.Verdict{By: "ann", Refuse: true, Reason: "r", Fingerprint: kept().Accepted}); !errors.Is(err, registry.ErrOtherOffer) || kept().Refused != nil {
		t.Errorf("refused another definition: %v", err)
	}
	if _, err := judge(registry.Verdict{By: "ann", Fingerprint: second, Refuse: true, Reason: "too much"}); err != nil {
		t.Fatal(err)
	}
	if p := kept(); p.Offered != second || p.Refused == nil || p.Refused.By != "ann" || p.Refused.Reason != "too much" || p.Refused.At.IsZero() || len(r.Catalogue().Quarantined()) != 1 {
		t.Errorf("%+v, refused %+v", p, p.Refused)
	}
	third := recorder.Tool{Name: "a", Definition: json.RawMessage(`{"name":"a","description":"third","inputSchema":{"type":"object"}}`)}
	offer(third)
	if p := kept(); p.Refused != nil {
		t.Errorf("another definition is refused already: %+v", p.Refused)
	}
	if _, err := judge(registry.Verdict{By: "ann", Refuse: true, Reason: "again"}); err != nil {
		t.Fatal(err)
	}
	if _, err := judge(registry.Verdict{By: "nobody"}); err == nil || kept().Offered == "" {
		t.Errorf("accepted without a record: %v", err)
	}
	if _, err := judge(registry.Verdict{By: "bob"}); err != nil {
		t.Fatal(err)
	}
	if p := kept(); p.AcceptedBy != "bob" || p.Refused != nil || p.Offered != "" {
		t.Errorf("%+v", p)
	}
	awaitTools(t, r, "s__a")
	if err := database(t, path).Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error { // as an older version accepts
		_, err := tx.ExecContext(ctx, "UPDATE pins SET accepted = ?", second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if p := kept(); p.AcceptedBy != "" {
		t.Errorf("%s accepted what somebody else did", p.AcceptedBy)
	}
}

// Without the pin a changed definition serves at once.
func TestNoPin(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	cfg := server("s", rec)
	cfg.Pin = config.PinOff
	r := open(t, registry.Options{})
	apply(t, r, cfg)
	await(t, "stream", func() bool { return rec.Streams() > 0 })
	before, _ := r.Catalogue().Lookup("", "s__a")
	rec.SetTools(true, newTool)
	await(t, "new definition", func() bool {
		now, ok := r.Catalogue().Lookup("", "s__a")
		return ok && now.Fingerprint != before.Fingerprint
	})
}

// A store that fails quarantines what it should have vouched for.
func TestPinStoreFails(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	db.Close()
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{oldTool}})
	r := open(t, registry.Options{DB: db})
	apply(t, r, server("s", rec))
	await(t, "quarantine", func() bool { return len(r.Catalogue().Quarantined()) == 1 })
	if got := names(r, ""); got != nil {
		t.Errorf("%v serve without a pin", got)
	}
}
