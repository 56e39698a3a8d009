package proxy_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// backend is one server behind /mcp: its capabilities, and its pages by method and
// cursor.
type backend struct {
	name, prefix, can string
	pages             map[string]string // :: method, space and cursor ⇒ result
}

// aggregate is a gate in front of several backends.
type aggregate struct {
	*library
	now      time.Time
	backends []backend

	mu   sync.Mutex // protects the fields below
	got  []string   // server, method and params
	down map[string]bool
	log  bytes.Buffer
	hold chan struct{} // closed to let lists be answered; nil = at once
	once func()        // called before the next list is answered
}

func newAggregate(t *testing.T, backends ...backend) *aggregate {
	t.Helper()
	s := &aggregate{library: newLibrary(t), now: time.Unix(1e9, 0), backends: backends, down: map[string]bool{}}
	g, err := proxy.New(proxy.Options{Identifier: s, Policy: s.library, Limiter: s, Tickets: s, Recorder: s, Servers: s,
		Upstreams: upstreams{bench: s.bench, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}, Now: func() time.Time { return s.now },
		Log: hclog.New(&hclog.LoggerOptions{Output: &s.log})})
	if err != nil {
		t.Fatal(err)
	}
	s.Gate = g
	return s
}

func (s *aggregate) Offers(context.Context) (out []registry.Offer) {
	for i, st := range s.backends {
		out = append(out, registry.Offer{Server: st.name, Prefix: st.prefix, Order: i, Capabilities: json.RawMessage(st.can)})
	}
	return out
}

func (s *aggregate) Ask(ctx context.Context, server string, ask registry.Ask) (json.RawMessage, error) {
	if s.hold != nil && strings.HasSuffix(ask.Method, "/list") {
		select {
		case <-s.hold:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	once := s.once
	s.once = nil
	s.mu.Unlock()
	if once != nil {
		once()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got = append(s.got, server+" "+ask.Method+" "+string(ask.Params))
	if s.down[server] {
		return nil, &registry.ForwardError{Kind: registry.Unavailable}
	}
	if !strings.HasSuffix(ask.Method, "/list") {
		return json.RawMessage(`{"from":"` + server + `"}`), nil
	}
	i := slices.IndexFunc(s.backends, func(st backend) bool { return st.name == server })
	var params struct{ Cursor string }
	if err := json.Unmarshal(ask.Params, &params); err != nil {
		return nil, err
	}
	page, ok := s.backends[i].pages[ask.Method+" "+params.Cursor]
	if !ok {
		return nil, &registry.ForwardError{Kind: registry.Failed, Sent: true, RPC: json.RawMessage(`{"code":-32601,"message":"none"}`)}
	}
	return json.RawMessage(page), nil
}

func (s *aggregate) enumerate(t *testing.T, method, cursor string) (string, *proxy.Failure) {
	t.Helper()
	params := "{}"
	if cursor != "" {
		params = `{"cursor":"` + cursor + `"}`
	}
	got, f := s.Enumerate(t.Context(), relayed(t, "", method, params), s.who)
	return string(got), f
}

const all = `{"resources":{},"prompts":{},"completions":{},"logging":{}}`

func backends() []backend {
	return []backend{
		{name: "a", prefix: "a__", can: all, pages: map[string]string{
			"resources/list ":           `{"resources":[{"uri":"x:1", "n":1e2}],"nextCursor":"2","ttlMs":1}`,
			"resources/list 2":          `{"resources":[{"uri":"both:"},{"uri":"file:///secret"}]}`,
			"resources/templates/list ": `{"resourceTemplates":[{"uriTemplate":"t:{id}"}]}`,
			"prompts/list ":             `{"prompts":[{"name":"p","title":"P"},{"name":"secret"}]}`,
		}},
		{name: "toolsonly", prefix: "o__", can: `{"tools":{}}`},
		{name: "b", prefix: "", can: all, pages: map[string]string{
			"resources/list ":           `{"resources":[{"uri":"both:"},{"uri":"t:listed"}]}`,
			"resources/templates/list ": `{"resourceTemplates":[{"uriTemplate":"u:{+path}"},{"uriTemplate":"t:{id}"},{"uriTemplate":"broken:{"}]}`,
			"prompts/list ":             `{"prompts":[{"name":"p"},{"name":"a__q"}]}`,
		}},
	}
}

// Where all servers are, one list follows the other: what the principal may use,
// in configured order, prompts under their exposed names.
func TestListsOfAllServers(t *testing.T) {
	s := newAggregate(t, backends()...)
	for method, want := range map[string]string{
		"resources/list":           `{"resources":[{"uri":"x:1", "n":1e2},{"uri":"both:"},{"uri":"both:"},{"uri":"t:listed"}]}`,
		"resources/templates/list": `{"resourceTemplates":[{"uriTemplate":"t:{id}"},{"uriTemplate":"u:{+path}"},{"uriTemplate":"t:{id}"},{"uriTemplate":"broken:{"}]}`,
		"prompts/list":             `{"prompts":[{"name":"a__p","title":"P"},{"name":"p"},{"name":"a__q"}]}`,
	} {
		if got, f := s.enumerate(t, method, ""); f != nil || got != want {
			t.Errorf("%s: %s, %v\nwant %s", method, got, f, want)
		}
	}
	if len(s.outcomes) != 0 {
		t.Errorf("lists left %+v", s.outcomes)
	}
}

// A list without a server warns, unless the server does not have the method, or is the only one.
func TestListsWithoutAServerAreLogged(t *testing.T) {
	s := newAggregate(t, backend{name: "a", can: all, pages: map[string]string{"resources/list ": `{"resources":[]}`}}, backends()[2])
	enumerate := func(route, method string) string {
		s.log.Reset()
		_, _ = s.Enumerate(t.Context(), relayed(t, route, method, "{}"), s.who)
		return s.log.String()
	}
	for _, got := range []string{enumerate("", "resources/templates/list"), enumerate("a", "prompts/list")} {
		if got != "" {
			t.Errorf("logged of a server without the method: %s", got)
		}
	}
	s.down["a"] = true
	if got := enumerate("", "resources/list"); strings.Count(got, "leaving a server out of a list: server=a") != 1 {
		t.Errorf("logged of a server that is down: %s", got)
	}
	if got := enumerate("a", "resources/list"); got != "" {
		t.Errorf("logged of the only server: %s", got)
	}
}

// A server that fails is left out, and only when all do the list fails.
func TestListsWithoutAServer(t *testing.T) {
	s := newAggregate(t, backends()...)
	s.down["a"] = true
	if got, f := s.enumerate(t, "prompts/list", ""); f != nil || got != `{"prompts":[{"name":"p"},{"name":"a__q"}]}` {
		t.Errorf("got %s, %v", got, f)
	}
	s.down["b"] = true
	if got, f := s.enumerate(t, "prompts/list", ""); f == nil || f.Kernel.Code != signal.CodeUpstreamUnavailable {
		t.Errorf("got %s, %v", got, f)
	}
	if got, f := newAggregate(t).enumerate(t, "prompts/list", ""); f != nil || got != `{"prompts":[]}` {
		t.Errorf("of no server: %s, %v", got, f)
	}
}

// A long list goes on with a cursor of ours, which leads to the server and the
// place in its list; any other is refused.
func TestCursorsOfAllServers(t *testing.T) {
	long := backend{name: "long", can: all, pages: map[string]string{}}
	elements := strings.TrimSuffix(strings.Repeat(`{"uri":"x:"},`, 999), ",")
	long.pages["resources/list "] = `{"resources":[` + elements + `],"nextCursor":"n\u0000x"}`
	long.pages["resources/list n\x00x"] = `{"resources":[{"uri":"x:"}],"nextCursor":"m"}`
	long.pages["resources/list m"] = `{"resources":[{"uri":"x:last"}]}`
	s := newAggregate(t, long, backends()[2])
	first, f := s.enumerate(t, "resources/list", "")
	var page struct {
		Resources  []struct{ URI string }
		NextCursor string
	}
	if err := json.Unmarshal([]byte(first), &page); err != nil || f != nil || len(page.Resources) != 1000 || page.NextCursor == "" {
		t.Fatalf("%d elements, %v, %v", len(page.Resources), err, f)
	}
	if got, f := s.enumerate(t, "resources/list", page.NextCursor); f != nil || got != `{"resources":[{"uri":"x:last"},{"uri":"both:"},{"uri":"t:listed"}]}` {
		t.Errorf("went on with %s, %v", got, f)
	}
	made := func(parts ...string) string {
		return base64.RawURLEncoding.EncodeToString([]byte(strings.Join(parts, "\x00")))
	}
	if _, f := s.enumerate(t, "resources/list", made("list", "resources/list", "long", "m")); f != nil {
		t.Fatalf("a cursor made as ours: %v", f)
	}
	for _, cursor := range []string{
		"m", "!", made("list"), made("list", "resources/list", "nobody", "m"), made("list", "prompts/list", "long", "m"),
		made("after", "resources/list", "long", "m"), made("list", "resources/list", "long", strings.Repeat("m", 9<<10)), page.NextCursor + "A",
	} {
		if got, f := s.enumerate(t, "resources/list", cursor); f == nil {
			t.Errorf("%.40s: %.80s, %v", cursor, got, f)
		}
	}
}

// A server that repeats its cursor does not hold the list up.
func TestARepeatedCursor(t *testing.T) {
	s := newAggregate(t, backend{name: "loop", can: all, pages: map[string]string{
		"prompts/list ": `{"prompts":[{"name":"1"}],"nextCursor":"c"}`, "prompts/list c": `{"prompts":[{"name":"2"}],"nextCursor":"c"}`,
	}}, backends()[2])
	if got, f := s.enumerate(t, "prompts/list", ""); f != nil || got != `{"prompts":[{"name":"1"},{"name":"2"},{"name":"p"},{"name":"a__q"}]}` {
		t.Errorf("got %s, %v", got, f)
	}
}

// What is asked for where all servers are goes to the one that has it: the first
// that lists it, else the first whose template describes it, prompts under their
// own names. The policy sees that server.
func TestWhereThingsAre(t *testing.T) {
	for _, tt := range []struct {
		method, params string
		want           string // what was sent, "" = nobody has it
		about          policy.Input
	}{
		{"resources/read", `{"uri":"x:1"}`, `a resources/read {"uri":"x:1"}`, policy.Input{Resource: &policy.Resource{Server: "a", URI: "x:1"}}},
		{"resources/subscribe", `{"uri":"t:listed"}`, `b resources/subscribe {"uri":"t:listed"}`, policy.Input{Resource: &policy.Resource{Server: "b", URI: "t:listed"}}},
		{"resources/unsubscribe", `{"uri":"both:"}`, `a resources/unsubscribe {"uri":"both:"}`, policy.Input{Resource: &policy.Resource{Server: "a", URI: "both:"}}},
		{"resources/read", `{"uri":"t:7"}`, `a resources/read {"uri":"t:7"}`, policy.Input{Resource: &policy.Resource{Server: "a", URI: "t:7"}}},
		{"resources/read", `{"uri":"u:deep/er"}`, `b resources/read {"uri":"u:deep/er"}`, policy.Input{Resource: &policy.Resource{Server: "b", URI: "u:deep/er"}}},
		{"resources/read", `{"uri":"t:7/8"}`, "", policy.Input{}},
		{"resources/read", `{"uri":"nowhere:"}`, "", policy.Input{}},
		{"prompts/get", `{ "name": "a__p", "arguments":{"n":"1"}}`, `a prompts/get { "name": "p", "arguments":{"n":"1"}}`, policy.Input{Prompt: &policy.Prompt{Server: "a", Name: "p"}}},
		{"prompts/get", `{"name":"p"}`, `b prompts/get {"name":"p"}`, policy.Input{Prompt: &policy.Prompt{Server: "b", Name: "p"}}},
		{"prompts/get", `{"name":"a__q"}`, `b prompts/get {"name":"a__q"}`, policy.Input{Prompt: &policy.Prompt{Server: "b", Name: "a__q"}}},
		{"prompts/get", `{"name":"b__p"}`, "", policy.Input{}},
		{"prompts/get", `{"name":"t:7"}`, "", policy.Input{}}, // templates describe resources only
		{"completion/complete", `{"ref":{"type":"ref/prompt", "name":"a__p"},"argument":{}}`, `a completion/complete {"ref":{"type":"ref/prompt", "name":"p"},"argument":{}}`, policy.Input{Prompt: &policy.Prompt{Server: "a", Name: "p"}}},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"u:{+path}"}}`, `b completion/complete {"ref":{"type":"ref/resource","uri":"u:{+path}"}}`, policy.Input{Resource: &policy.Resource{Server: "b", URI: "u:{+path}"}}},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"x:1"}}`, `a completion/complete {"ref":{"type":"ref/resource","uri":"x:1"}}`, policy.Input{Resource: &policy.Resource{Server: "a", URI: "x:1"}}},
		{"completion/complete", `{"ref":{"type":"ref/resource","uri":"nowhere:"}}`, "", policy.Input{}},
		{"completion/complete", `{"ref":{"type":"ref/prompt","name":"nobody"}}`, "", policy.Input{}},
	} {
		for _, listed := range []bool{false, true} {
			s := newAggregate(t, backends()...)
			if listed {
				for _, method := range []string{"resources/templates/list", "prompts/list", "resources/list"} {
					if _, f := s.enumerate(t, method, ""); f != nil {
						t.Fatal(f)
					}
				}
				s.got, s.inputs = nil, nil
			}
			_, f := s.Relay(t.Context(), relayed(t, "", tt.method, tt.params))
			if tt.want == "" {
				if f == nil || f.Kernel.Code != signal.CodeNotFound || len(s.outcomes) != 1 || s.outcomes[0].Stage != "resolve" {
					t.Errorf("%s %s: %v, records %+v", tt.method, tt.params, f, s.outcomes)
				}
				continue
			}
			if f != nil || s.got[len(s.got)-1] != tt.want || listed && len(s.got) != 1 {
				t.Errorf("%s %s, listed %v: sent %q, %v", tt.method, tt.params, listed, s.got, f)
				continue
			}
			if diff := cmp.Diff(tt.about, policy.Input{Resource: s.inputs[0].Resource, Prompt: s.inputs[0].Prompt}); diff != "" {
				t.Errorf("%s %s judged (-want +got):\n%s", tt.method, tt.params, diff)
			}
			_, sent, _ := strings.Cut(tt.want, tt.method+" ")
			if d := s.decisions[0]; d.Server != tt.want[:1] || string(d.Arguments) != sent {
				t.Errorf("%s %s: record %+v", tt.method, tt.params, d)
			}
		}
	}
}

// All lists are read at most once in a while for what nobody has, and again when
// a server says that they have changed.
func TestLookingAgain(t *testing.T) {
	s := newAggregate(t, backends()...)
	read := func(want int) {
		t.Helper()
		before := len(s.got)
		_, _ = s.Relay(t.Context(), relayed(t, "", "resources/read", `{"uri":"nowhere:"}`))
		if got := len(s.got) - before; (got > 0) != (want > 0) {
			t.Errorf("read %d lists, want %d", got, want)
		}
	}
	read(7)
	read(0)
	s.now = s.now.Add(5 * time.Second)
	read(7)
	read(0)
	s.EndSession("s1")
	read(7)
	s.ListChanged("b", "notifications/resources/list_changed")
	read(7)
	read(0)
}

// Lists that change while they are read are read again for whom they were read.
func TestListsThatChangeUnderOnesEyes(t *testing.T) {
	for _, uri := range []string{"x:1", "u:a/b"} {
		s := newAggregate(t, backends()...)
		lists := 0
		var change func()
		change = func() { // when the first lists have been read
			if lists++; lists == 6 {
				s.ListChanged("b", "notifications/resources/list_changed")
				return
			}
			s.mu.Lock()
			s.once = change
			s.mu.Unlock()
		}
		s.once = change
		if _, f := s.Relay(t.Context(), relayed(t, "", "resources/read", `{"uri":"`+uri+`"}`)); f != nil {
			t.Errorf("%s: %v", uri, f)
		}
	}
}

// Two requests of a session that look at once both find what they look for.
func TestLookingSideBySide(t *testing.T) {
	s := newAggregate(t, backends()...)
	s.hold = make(chan struct{})
	var both sync.WaitGroup
	for _, uri := range []string{"x:1", "t:listed"} {
		both.Go(func() {
			if _, f := s.Relay(t.Context(), relayed(t, "", "resources/read", `{"uri":"`+uri+`"}`)); f != nil {
				t.Errorf("%s: %v", uri, f)
			}
		})
	}
	close(s.hold)
	both.Wait()
}

// The log level of all servers is judged by the tools of all, and goes to none
// of them: every later request carries it.
func TestTheLevelOfAllServers(t *testing.T) {
	s := newAggregate(t, backends()...)
	reply, f := s.Relay(t.Context(), relayed(t, "", "logging/setLevel", `{"level":"info"}`))
	if f != nil || string(reply.Result) != "{}" || len(s.got) != 0 {
		t.Errorf("got %v, %v, sent %v", reply, f, s.got)
	}
	if diff := cmp.Diff(&policy.Server{Tools: []string{"web__find"}}, s.inputs[0].Server); diff != "" {
		t.Errorf("judged (-want +got):\n%s", diff)
	}
	s.refuses = "logging/setLevel"
	if _, f := s.Relay(t.Context(), relayed(t, "", "logging/setLevel", `{"level":"info"}`)); f == nil || f.Kernel.Code != signal.CodePolicyDenied {
		t.Errorf("denied: %v", f)
	}
}

// A subscription ends at the server where it was begun, whoever has the resource
// by then.
func TestSubscriptionsEndWhereTheyBegan(t *testing.T) {
	s := newAggregate(t, backends()...)
	about := func(method string) string {
		t.Helper()
		if _, f := s.Relay(t.Context(), relayed(t, "", method, `{"uri":"t:listed"}`)); f != nil {
			return f.Kernel.Code
		}
		return s.got[len(s.got)-1]
	}
	if got := about("resources/subscribe"); got != `b resources/subscribe {"uri":"t:listed"}` {
		t.Fatal(got)
	}
	s.backends[2].pages["resources/list "] = `{"resources":[]}`
	s.ListChanged("b", "notifications/resources/list_changed")
	if got := about("resources/read"); got != `a resources/read {"uri":"t:listed"}` { // by its template
		t.Error(got)
	}
	if got := about("resources/unsubscribe"); got != `b resources/unsubscribe {"uri":"t:listed"}` {
		t.Error(got)
	}
	if got := about("resources/unsubscribe"); got != `a resources/unsubscribe {"uri":"t:listed"}` {
		t.Error(got)
	}
}
