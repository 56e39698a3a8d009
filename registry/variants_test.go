package registry_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

const (
	canAsk  = `{"sampling":{}}`
	canShow = `{"extensions":{"io.modelcontextprotocol/ui":{}}}`
	forAsk  = "client:elicitation,roots,sampling"
	forShow = "client:io.modelcontextprotocol/ui"
)

// weather is a tool with a title, for clients with a capability, "" for all.
func weather(title, needs string) recorder.Tool {
	return recorder.Tool{Name: "weather", Needs: needs, Definition: fmt.Appendf(nil, `{"name":"weather","title":%q,"inputSchema":{"type":"object"}}`, title)}
}

// forecast is a server that offers one tool with three definitions. The first that a client
// can have counts.
func forecast(ask, show, plain string) []recorder.Tool {
	return []recorder.Tool{weather(ask, "sampling"), weather(show, "extensions"), weather(plain, "")}
}

// served returns the title of the definition that a client is served, and of one that is
// withheld from it the title in parentheses, once the list agrees: the server may announce
// a change between two looks.
func served(t *testing.T, r *registry.Registry, from registry.Downstream) (title string) {
	t.Helper()
	await(t, "a list that agrees", func() bool {
		tool, ok := r.View(t.Context(), "s", from).Lookup("weather")
		if title = "-"; !ok {
			return true
		}
		var is struct{ Title string }
		if err := json.Unmarshal(tool.Definition, &is); err != nil {
			t.Error(err)
		}
		all := r.View(t.Context(), "s", from).Tools()
		if title = is.Title; tool.Quarantine != "" {
			title = "(" + title + ")"
			return len(all) == 0
		}
		return len(all) == 1 && all[0].Fingerprint == tool.Fingerprint
	})
	return title
}

// serves checks what clients of three kinds are served, and that a call of what is
// withheld does not arrive.
func serves(t *testing.T, r *registry.Registry, plain, ask, show string) {
	t.Helper()
	for can, want := range map[string]string{`{}`: plain, canAsk: ask, canShow: show} {
		from := client("s"+can, can)
		await(t, can+" is served "+want, func() bool { return served(t, r, from) == want })
		if tool, ok := r.View(t.Context(), "s", from).Lookup("weather"); ok {
			_, err := r.Forward(t.Context(), tool, registry.Outgoing{From: from})
			if (err == nil) != !strings.HasPrefix(want, "(") {
				t.Errorf("%s calls %s: %v", can, want, err)
			}
		}
	}
}

// pinned lists the pins, each with its condition and with + when another definition waits.
func pinned(t *testing.T, p *registry.Pins) (out []string) {
	t.Helper()
	pins, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, pin := range pins {
		text := string(pin.Condition)
		if pin.Accepted != "" {
			text += " accepted"
		}
		if pin.Offered != "" {
			text += " +" + pin.Differs
		}
		out = append(out, strings.TrimSpace(text))
	}
	return out
}

// withheld lists what the operator reads of a server.
func withheld(r *registry.Registry) (out []string) {
	for name, why := range r.Status()[0].Withheld {
		why, _, _ = strings.Cut(why, "\n")
		out = append(out, name+": "+why)
	}
	slices.Sort(out)
	return out
}

// The first list has the definitions for clients of each kind, and each client is served
// its own, also after a restart.
func TestFirstVariants(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: forecast("ask", "show", "plain")})
	path := filepath.Join(t.TempDir(), "state.db")
	for range 2 {
		r := open(t, registry.Options{DB: database(t, path)})
		apply(t, r, server("s", rec))
		await(t, "the server", func() bool { return r.Status()[0].State == "ready" })
		serves(t, r, "plain", "ask", "show")
		if got := served(t, r, client("both", `{"roots":{},"extensions":{"x":{},"io.modelcontextprotocol/ui":{}}}`)); got != "show" {
			t.Errorf("a client that can do more is served %s", got)
		}
		if diff := cmp.Diff([]string{"accepted", forAsk + " accepted", forShow + " accepted"}, pinned(t, r.Pins())); diff != "" {
			t.Error(diff)
		}
		if s := r.Status()[0]; s.Tools != 1 || s.Quarantined != 0 {
			t.Errorf("%d tools and %d in quarantine, want 1 and none", s.Tools, s.Quarantined)
		}
		r.Close(context.Background())
	}
}

// A definition that the server writes otherwise for some clients is one definition, in
// lists and in calls, until it means something else.
func TestOtherOrderOfMembers(t *testing.T) {
	written := func(title string) []recorder.Tool {
		return []recorder.Tool{{Name: "weather", Needs: "sampling", Definition: fmt.Appendf(nil, `{"inputSchema": {"type":"object"},"title":%q,"name":"weather"}`, title)}, weather("plain", "")}
	}
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: written("plain")})
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	serves(t, r, "plain", "plain", "plain")
	if diff := cmp.Diff([]string{"accepted"}, pinned(t, r.Pins())); diff != "" {
		t.Error(diff)
	}
	await(t, "streams", func() bool { return rec.Streams() == 4 })
	rec.SetTools(true, written("another")...)
	await(t, "the change", func() bool { return served(t, r, client("s"+canAsk, canAsk)) == "(another)" })
	serves(t, r, "plain", "(another)", "plain")
}

// A definition is accepted for the clients that it was offered to, and for no others: one
// that other clients get is quarantined for them.
func TestVariantForOthers(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: forecast("ask", "show", "plain")})
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	serves(t, r, "plain", "ask", "show")
	await(t, "streams", func() bool { return rec.Streams() == 4 })
	rec.SetTools(true, forecast("ask", "show", "show")...)
	await(t, "the quarantine for a client that cannot show", func() bool { return served(t, r, client("s{}", `{}`)) == "(show)" })
	rec.SetTools(true, forecast("show", "show", "plain")...)
	await(t, "the other change", func() bool { return served(t, r, client("s{}", `{}`)) == "plain" })
	await(t, "that one", func() bool { return served(t, r, client("s"+canShow, canShow)) == "show" })
	await(t, "the one for others", func() bool { return served(t, r, client("s"+canAsk, canAsk)) == "(show)" })
}

// A change of one definition withholds that one, is reported for its clients and accepted
// for them. With several that wait, one has to be named.
func TestAcceptVariant(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: forecast("ask", "show", "plain")})
	var reports []string
	r := open(t, registry.Options{DB: database(t, filepath.Join(t.TempDir(), "state.db")), Changed: func(all []registry.Change) error {
		for _, c := range all {
			reports = append(reports, c.Tool+" "+string(c.Condition)+" "+c.Differs)
		}
		return nil
	}})
	apply(t, r, server("s", rec))
	serves(t, r, "plain", "ask", "show")
	await(t, "streams", func() bool { return rec.Streams() == 4 })
	rec.SetTools(true, forecast("ask", "new show", "plain")...)
	await(t, "the change", func() bool { return served(t, r, client("s"+canShow, canShow)) == "(new show)" })
	serves(t, r, "plain", "ask", "(new show)")
	// Another connection may list anew at any time, after which only what clients look at is
	// in the catalogue.
	await(t, "what is withheld", func() bool {
		served(t, r, client("s"+canShow, canShow))
		return slices.Equal(withheld(r), []string{"weather (for clients with io.modelcontextprotocol/ui): definition changed since it was accepted; it differs first in title"})
	})
	rec.SetTools(true, forecast("new ask", "new show", "plain")...)
	await(t, "the next change", func() bool { return served(t, r, client("s"+canAsk, canAsk)) == "(new ask)" })
	serves(t, r, "plain", "(new ask)", "(new show)")
	if diff := cmp.Diff([]string{"weather " + forShow + " title", "weather " + forAsk + " title"}, reports); diff != "" {
		t.Error(diff)
	}
	if err := r.Pins().Judge(t.Context(), registry.Verdict{Server: "s", Tool: "weather"}); !errors.Is(err, registry.ErrOffers) {
		t.Errorf("accepting one of two: %v", err)
	}
	if _, _, err := r.Pins().Diff(t.Context(), "s", "weather", ""); !errors.Is(err, registry.ErrOffers) {
		t.Errorf("comparing one of two: %v", err)
	}
	tool, _ := r.View(t.Context(), "s", client("s"+canShow, canShow)).Lookup("weather")
	was, is, err := r.Pins().Diff(t.Context(), "s", "weather", tool.Fingerprint)
	if err != nil || !strings.Contains(string(was), `"show"`) || !strings.Contains(string(is), `"new show"`) {
		t.Errorf("from %s to %s, error %v", was, is, err)
	}
	if err := r.Pins().Judge(t.Context(), registry.Verdict{Server: "s", Tool: "weather", Fingerprint: tool.Fingerprint}); err != nil {
		t.Fatal(err)
	}
	serves(t, r, "plain", "(new ask)", "new show")
	if diff := cmp.Diff([]string{"accepted", forAsk + " accepted +title", forShow + " accepted"}, pinned(t, r.Pins())); diff != "" {
		t.Error(diff)
	}
}

// Pins of an older version are for all clients: the tool goes on, and what it is for some
// clients waits until a person accepts it.
func TestOldPin(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: []recorder.Tool{weather("plain", "")}})
	r := open(t, registry.Options{})
	apply(t, r, server("s", rec))
	awaitTools(t, r, "s__weather")
	plain, _ := r.Catalogue().Lookup("s", "weather")
	if err := db.Update(t.Context(), func(ctx context.Context, tx *sql.Tx) error { // as the older version writes it
		_, err := tx.ExecContext(ctx, `INSERT INTO pins (server, tool, accepted, accepted_definition, accepted_at) VALUES ('s', 'weather', ?, ?, 1)`,
			plain.Fingerprint, []byte(plain.Definition))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	rec.SetTools(false, forecast("plain", "show", "plain")...)
	second := open(t, registry.Options{DB: db})
	apply(t, second, server("s", rec))
	serves(t, second, "plain", "plain", "(show)")
	if diff := cmp.Diff([]string{"accepted", forShow + " +title"}, pinned(t, second.Pins())); diff != "" {
		t.Error(diff)
	}
	if got := withheld(second); len(got) != 1 || !strings.Contains(got[0], "nobody has accepted this definition, which the server offers to some clients only; it differs first in title") {
		t.Errorf("withheld %q", got)
	}
	if err := second.Pins().Judge(t.Context(), registry.Verdict{Server: "s", Tool: "weather"}); err != nil {
		t.Fatal(err)
	}
	serves(t, second, "plain", "plain", "show")
}

// A lock holds the definitions for each kind of client, and one of an older version those
// for all clients.
func TestLockOfVariants(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: forecast("ask", "show", "plain")})
	probe := open(t, registry.Options{})
	apply(t, probe, server("s", rec))
	await(t, "the server", func() bool { return probe.Status()[0].State == "ready" })
	now, err := probe.Fingerprints(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	cfg := server("s", rec)
	now.Origin = cfg.Origin
	for name, tt := range map[string]struct {
		pin       config.Pin
		change    func(*lock.Server)
		ask, show string
		withheld  string
	}{
		"strict":                 {config.PinStrict, func(*lock.Server) {}, "ask", "show", ""},
		"strict, an older lock":  {config.PinStrict, func(s *lock.Server) { s.Variants = nil }, "(ask)", "(show)", "it is not in toolgate.lock.json"},
		"strict, another lock":   {config.PinStrict, func(s *lock.Server) { s.Add("weather", forShow, "sha256:1") }, "ask", "(show)", "its definition differs from the one in toolgate.lock.json"},
		"first, from the lock":   {config.PinFirst, func(*lock.Server) {}, "ask", "show", ""},
		"first, an older lock":   {config.PinFirst, func(s *lock.Server) { s.Variants = nil }, "(ask)", "(show)", "nobody has accepted this definition"},
		"off, whatever is in it": {config.PinOff, func(s *lock.Server) { s.Variants = nil }, "ask", "show", ""},
	} {
		t.Run(name, func(t *testing.T) {
			held, err := lock.Parse((&lock.File{Servers: map[string]lock.Server{"s": now}}).Bytes())
			if err != nil {
				t.Fatal(err)
			}
			of := held.Servers["s"]
			tt.change(&of)
			held.Servers["s"] = of
			cfg := cfg
			cfg.Pin = tt.pin
			r := open(t, registry.Options{DB: database(t, filepath.Join(t.TempDir(), "state.db"))})
			if err := r.Apply(t.Context(), &config.Config{Servers: []config.Server{cfg}, Lock: held}); err != nil {
				t.Fatal(err)
			}
			r.Settle(t.Context())
			serves(t, r, "plain", tt.ask, tt.show)
			if got := strings.Join(withheld(r), "\n"); !strings.Contains(got, tt.withheld) || (got == "") != (tt.withheld == "") {
				t.Errorf("withheld %q", got)
			}
		})
	}
}

// What is bound to a definition finds it, whichever clients it is for, and finds the one in
// its place after a change. It finds nothing while the clients have not listed again.
func TestBound(t *testing.T) {
	rec := recorder.HTTP(t, recorder.Config{Sessions: true, Tools: forecast("ask", "show", "plain")})
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	r := open(t, registry.Options{DB: db})
	apply(t, r, server("s", rec))
	serves(t, r, "plain", "ask", "show")
	fingerprint := func(can string) (is string) {
		await(t, "a definition for "+can, func() bool {
			tool, ok := r.View(t.Context(), "s", client("s"+can, can)).Lookup("weather")
			if ok {
				is = tool.Fingerprint
			}
			return ok
		})
		return is
	}
	plain, show := fingerprint(`{}`), fingerprint(canShow)
	check := func(r *registry.Registry, what, bound, want string) {
		t.Helper()
		await(t, what+" is "+want, func() bool {
			tool, ok := r.View(t.Context(), "", registry.Downstream{}).Bound("s__weather", bound)
			return ok && strings.TrimSpace(tool.Fingerprint+" "+tool.Refusal()) == want || !ok && want == "-"
		})
	}
	check(r, "that for all", plain, plain)
	check(r, "that for some", show, show)
	check(r, "an unknown one", "sha256:1", plain)
	await(t, "streams", func() bool { return rec.Streams() == 4 })
	rec.SetTools(true, forecast("ask", "new show", "plain")...)
	await(t, "the change", func() bool { return served(t, r, client("s"+canShow, canShow)) == "(new show)" })
	check(r, "a changed one", show, fingerprint(canShow)+" the tool is withheld until an operator accepts its changed definition")
	r.Close(context.Background())
	again := open(t, registry.Options{DB: db})
	apply(t, again, server("s", rec))
	await(t, "the server", func() bool { return again.Status()[0].State == "ready" })
	check(again, "after a restart, before such a client", show, "-")
	check(again, "after a restart", plain, plain)
}
