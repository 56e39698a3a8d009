package registry_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// The union has what one server has at least; what all must agree on, only where
// they do.
func TestUnionOfOffers(t *testing.T) {
	const tasks = `"tasks":{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}`
	for _, tt := range []struct {
		name   string
		offers []string
		want   string
	}{
		{"nobody", nil, `{}`},
		{"not connected", []string{""}, `{}`},
		{"one", []string{`{"tools":{"listChanged":true},"resources":{"subscribe":true,"x":1},"vendor":{}}`}, `{"tools":{"listChanged":true},"resources":{"subscribe":true}}`},
		{"two", []string{`{"resources":{"subscribe":true},"logging":{}}`, "", `{"resources":{"listChanged":true,"subscribe":false},"prompts":{},"completions":{}}`},
			`{"resources":{"subscribe":true,"listChanged":true},"prompts":{},"completions":{},"logging":{}}`},
		{"no object", []string{`{"prompts":true}`}, `{"prompts":{}}`},
		{"tasks", []string{`{` + tasks + `}`, `{"tools":{}}`}, `{"tools":{},"tasks":{"requests":{"tools":{"call":{}}},"cancel":{},"list":{}}}`},
		{"tasks that one cannot list", []string{`{` + tasks + `}`, `{"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}}`}, `{"tasks":{"requests":{"tools":{"call":{}}},"cancel":{}}}`},
		{"tasks of nothing", []string{`{"tasks":{"list":{},"requests":{}}}`}, `{}`},
		{"extensions", []string{`{"extensions":{"vendor/x":{},"io.modelcontextprotocol/ui":{"a":1}}}`, `{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{}}}`},
			`{"extensions":{"io.modelcontextprotocol/tasks":{},"io.modelcontextprotocol/ui":{"a":1}}}`},
		{"skills", []string{`{"extensions":{"io.modelcontextprotocol/skills":{"a":1}}}`, `{"tools":{}}`, `{"extensions":{"io.modelcontextprotocol/skills":{"directoryRead":true}}}`},
			`{"tools":{},"extensions":{"io.modelcontextprotocol/skills":{"a":1,"directoryRead":true}}}`},
		{"skills without directories", []string{`{"extensions":{"io.modelcontextprotocol/skills":{}}}`, `{"extensions":{"io.modelcontextprotocol/ui":{"directoryRead":true}}}`},
			`{"extensions":{"io.modelcontextprotocol/skills":{},"io.modelcontextprotocol/ui":{"directoryRead":true}}}`},
	} {
		var offers []registry.Offer
		for _, o := range tt.offers {
			offers = append(offers, registry.Offer{Capabilities: json.RawMessage(o)})
		}
		if got := string(registry.Union(offers)); got != tt.want {
			t.Errorf("%s: %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

// Where all clients share one connection, what needs one of one's own is not
// offered.
func TestOffersOfSharedServers(t *testing.T) {
	const declared = `{"logging":{},"resources":{"subscribe":true,"listChanged":true},"tasks":{},"x":1}`
	for isolation, want := range map[string]string{
		config.IsolationSession: declared,
		config.IsolationShared:  `{"resources":{"listChanged":true},"x":1}`,
	} {
		o := registry.OfferOf(config.Server{Name: "s", Prefix: "s__", Isolation: isolation}, 2, json.RawMessage(declared))
		if string(o.Capabilities) != want || o.Server != "s" || o.Prefix != "s__" || o.Order != 2 {
			t.Errorf("%s: %+v, want %s", isolation, o, want)
		}
	}
	if o := registry.OfferOf(config.Server{Isolation: config.IsolationShared}, 0, nil); o.Capabilities != nil {
		t.Errorf("not connected: %s", o.Capabilities)
	}
}

// What servers declare is shown by name, and counted by the names that are known.
func TestWhatServersDeclare(t *testing.T) {
	r := open(t, registry.Options{})
	one := recorder.HTTP(t, recorder.Config{Capabilities: json.RawMessage(`{"tools":{},"logging":{},"extensions":{"io.modelcontextprotocol/skills":{},"vendor/\u202ex":{},"vendor/y":{}}}`)})
	two := recorder.HTTP(t, recorder.Config{Capabilities: json.RawMessage(`{"extensions":{"io.modelcontextprotocol/skills":{}}}`)})
	first, second := server("one", one), server("two", two)
	first.Isolation, first.HiddenText = "shared", "report"
	apply(t, r, first, second)
	s := r.Status()[0]
	if diff := cmp.Diff([][]string{{"tools", "extensions"}, {"io.modelcontextprotocol/skills", "vendor/<U+202E>x", "vendor/y"}}, [][]string{s.Capabilities, s.Extensions}); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[string]float64{"io.modelcontextprotocol/skills": 2, "other": 1}, r.Negotiated()); diff != "" {
		t.Error(diff)
	}
}
