package contract_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/registry/contract"
)

// definition is the part of a tool that a client reads.
type definition struct {
	Name         string          `json:"name"`
	Title        string          `json:"title"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"inputSchema"`
	OutputSchema json.RawMessage `json:"outputSchema"`
	Annotations  map[string]any  `json:"annotations"`
}

// withBackend is before the name of a tool in these tests that has its definition with a
// backend.
const withBackend = "with backend: "

func read(t *testing.T, name string) definition {
	t.Helper()
	tool, ok := contract.Get(name)
	if with, found := strings.CutPrefix(name, withBackend); found {
		tool, ok = contract.WithBackend(with)
	}
	if !ok {
		t.Fatalf("no definition of %s", name)
	}
	var d definition
	if err := json.Unmarshal(tool.Definition, &d); err != nil {
		t.Fatalf("definition of %s: %v", name, err)
	}
	return d
}

func TestTools(t *testing.T) {
	var names []string
	for _, tool := range contract.Tools() {
		names = append(names, tool.Name)
		d := read(t, tool.Name)
		if d.Name != tool.Name || d.Title == "" || d.Description == "" || len(d.Annotations) == 0 {
			t.Errorf("definition of %s lacks members: %+v", tool.Name, d)
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(tool.Definition, &members); err != nil {
			t.Fatal(err)
		}
		if len(members) != 6 {
			t.Errorf("definition of %s has %d members, want 6", tool.Name, len(members))
		}
	}
	if diff := cmp.Diff([]string{"search_internet", "generate_media", "manage_wallet"}, names); diff != "" {
		t.Errorf("Tools (-want +got):\n%s", diff)
	}
}

func TestGetUnknown(t *testing.T) {
	for _, name := range []string{"", "search", "../contract", "SEARCH_INTERNET", "search_internet.json", "fetch_page", "backends/fetch_page"} {
		if tool, ok := contract.Get(name); ok || tool.Definition != nil {
			t.Errorf("Get(%q) = %s, want none", name, tool.Definition)
		}
	}
}

// A chosen backend changes the definition of its tool and of no other one.
func TestToolsWithBackends(t *testing.T) {
	list := func(chosen ...string) (lines []string) {
		for _, tool := range contract.Tools(chosen...) {
			how := "offline"
			if with, ok := contract.WithBackend(tool.Name); ok && string(with.Definition) == string(tool.Definition) {
				how = "backend"
			}
			lines = append(lines, tool.Name+" "+how)
		}
		return lines
	}
	for _, c := range []struct{ chosen, want []string }{
		{nil, []string{"search_internet offline", "generate_media offline", "manage_wallet offline"}},
		{[]string{"search_internet"}, []string{"search_internet backend", "generate_media offline", "manage_wallet offline"}},
		{[]string{"generate_media"}, []string{"search_internet offline", "generate_media backend", "manage_wallet offline"}},
		{[]string{"fetch_page", "search_internet"}, []string{"search_internet backend", "generate_media offline", "manage_wallet offline", "fetch_page backend"}},
		{[]string{"nothing"}, []string{"search_internet offline", "generate_media offline", "manage_wallet offline"}},
	} {
		if diff := cmp.Diff(c.want, list(c.chosen...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.chosen, diff)
		}
	}
}

// A change of an offline definition quarantines the tool wherever it is pinned, which is
// everywhere by default, until a person accepts it.
func TestOfflineDefinitionsStay(t *testing.T) {
	sums := map[string]string{}
	for _, tool := range contract.Tools() {
		sums[tool.Name] = fmt.Sprintf("%x", sha256.Sum256(tool.Definition))
	}
	if diff := cmp.Diff(map[string]string{
		"search_internet": "01ff9372534811edfbb43bcd6edcfc2047005be0b3519b028dd8e7655606e9c1", "generate_media": "a9da1d021b785c171e55320590a3119aba79f07694bb7827026323463b99bdf8", "manage_wallet": "8fdbf9498da7d1d977a1c3c32667040c3c1fcff93be1c3596cc6f08ec4fd3e18",
	}, sums); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDefinitionsAreCopies: a change of a returned definition does not change the
// contract.
func TestDefinitionsAreCopies(t *testing.T) {
	first := contract.Tools()
	before := slices.Clone(first[0].Definition)
	clear(first[0].Definition)
	again, _ := contract.Get(first[0].Name)
	if diff := cmp.Diff(string(before), string(again.Definition)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// rows are values that a schema accepts and values that it rejects.
type rows struct{ allow, deny []string }

func (r rows) check(t *testing.T, what string, raw json.RawMessage) {
	t.Helper()
	s, err := schema.Compile(raw)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	judge := func(instance string, want bool) {
		t.Helper()
		faults, err := s.Validate(json.RawMessage(instance))
		if err != nil || (len(faults) == 0) != want {
			t.Errorf("%s: %s: faults %v, %v, want it valid: %v", what, instance, faults, err, want)
		}
	}
	for _, instance := range r.allow {
		judge(instance, true)
	}
	for _, instance := range r.deny {
		judge(instance, false)
	}
}

func TestInputs(t *testing.T) {
	for name, r := range map[string]rows{
		"search_internet": {
			allow: []string{`{"query":"x"}`, `{"query":"x","num_results":1}`, `{"query":"x","num_results":10}`},
			deny: []string{
				`{}`, `{"query":""}`, `{"query":"  "}`, `{"query":5}`, `{"query":"x","num_results":0}`, `{"query":"x","num_results":11}`,
				`{"query":"x","num_results":2.5}`, `{"query":"x","num_results":"many"}`, `{"query":"x","num_results":null}`,
				`{"query":"x","more":1}`, `[]`, `null`,
			},
		},
		withBackend + "manage_wallet": {
			allow: []string{
				`{"action":"balance"}`, `{"action":"reconcile"}`,
				`{"action":"transfer","asset":"ETH","amount":0.01,"destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","amount":"0.010000000000000001","destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","value":"1","to":"x","idempotency_key":"k"}`,
				`{"action":"transfer","tokenAddress":"0x52908400098527886E0F7030069857D2E4169EE7","amount":"1","destinationAddress":"x","idempotency_key":"k"}`,
				`{"action":"balance","tokenAddress":"0x52908400098527886E0F7030069857D2E4169EE7"}`,
			},
			deny: []string{
				`{"action":"transfer","asset":"ETH","amount":1,"destination":"x"}`,
				`{"action":"transfer","asset":"ETH","amount":0,"destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","amount":"1e2","destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","amount":"-1","destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","value":"1e2","to":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","value":"1","amount":"1","to":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","value":"1","to":"x","destination":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","value":"1","to":"x","destinationAddress":"x","idempotency_key":"k"}`,
				`{"action":"transfer","asset":"ETH","tokenAddress":"0x52908400098527886E0F7030069857D2E4169EE7","value":"1","to":"x","idempotency_key":"k"}`,
				`{"action":"transfer","tokenAddress":"USDC","value":"1","to":"x","idempotency_key":"k"}`,
			},
		},
		withBackend + "fetch_page": {
			allow: []string{`{"url":"https://example.org/"}`, `{"url":"http://example.org","format":"text","max_characters":100000}`},
			deny: []string{
				`{}`, `{"url":""}`, `{"url":"ftp://example.org"}`, `{"url":"example.org"}`, `{"url":"file:///etc/passwd"}`, `{"url":"https://a","format":"html"}`,
				`{"url":"https://a","max_characters":0}`, `{"url":"https://a","max_characters":100001}`, `{"url":"https://a","headers":{}}`,
			},
		},
		"generate_media": {
			allow: []string{`{"prompt":"x","model":"card-1"}`, `{"prompt":"x","model":"card-1","aspect_ratio":"16:9"}`},
			deny: []string{
				`{}`, `{"prompt":"x"}`, `{"model":"card-1"}`, `{"prompt":"","model":"card-1"}`, `{"prompt":"x","model":""}`,
				`{"prompt":"x","model":"card-1","aspect_ratio":"2:1"}`, `{"prompt":"x","model":["card-1"]}`, `{"prompt":"x","model":"card-1","size":1}`,
			},
		},
		"manage_wallet": {
			allow: []string{
				`{"action":"balance"}`, `{"action":"balance","asset":"USD"}`,
				`{"action":"transfer","asset":"USD","amount":0.01,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":9007199254740993,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":1,"destination":"x","idempotency_key":"order-7"}`,
			},
			deny: []string{
				`{}`, `{"action":"spend"}`, `{"action":"transfer"}`, `{"asset":"USD"}`,
				`{"action":"transfer","asset":"USD","amount":1}`, `{"action":"transfer","asset":"USD","destination":"x"}`,
				`{"action":"transfer","amount":1,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":0,"destination":"x"}`, `{"action":"transfer","asset":"USD","amount":-1,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":"1","destination":"x"}`, `{"action":"transfer","asset":"USD","amount":null,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":1,"destination":""}`, `{"action":"transfer","asset":"","amount":1,"destination":"x"}`,
				`{"action":"transfer","asset":"USD","amount":1,"destination":"x","idempotency_key":""}`,
				`{"action":"transfer","asset":"USD","amount":1,"destination":"x","idempotency_key":7}`,
				`{"action":"balance","amount":0}`, `{"action":"balance","memo":"x"}`,
			},
		},
	} {
		r.check(t, name, read(t, name).InputSchema)
	}
}

func TestOutputs(t *testing.T) {
	const sum = `"dd521d671525d65a680a593b6e9bc340fcc59e4027b25fcc5a9e2cee3975d2b6"`
	for name, r := range map[string]rows{
		"search_internet": {
			allow: []string{
				`{"provider":"p","results":[]}`,
				`{"provider":"p","results":[{"id":"1","title":"t","url":"doc:1","snippet":"s","score":0.5}]}`,
			},
			deny: []string{`{}`, `{"results":[]}`, `{"provider":"p"}`, `{"provider":"p","results":[{"id":"1"}]}`},
		},
		withBackend + "search_internet": {
			allow: []string{
				`{"provider":"p","untrusted":true,"results":[]}`,
				`{"provider":"p","untrusted":true,"results":[{"id":"1","title":"t","url":"doc:1","snippet":"s","source":"documents","provider":"p","score":0.5}]}`,
				`{"provider":"p","untrusted":true,"results":[{"id":"1","title":"","url":"u","snippet":"","source":"s","provider":"p","published_at":"2026-01-02"}]}`,
				`{"provider":"p","untrusted":true,"results":[{"id":"1","title":"","url":"u","snippet":"","source":"s","provider":"p","published_at":"2026-01-02T03:04:05Z"}]}`,
			},
			deny: []string{
				`{}`, `{"results":[]}`, `{"provider":"p"}`, `{"provider":"p","untrusted":true,"results":[{"id":"1"}]}`,
				`{"provider":"p","results":[]}`, `{"provider":"p","untrusted":false,"results":[]}`,
				`{"provider":"p","untrusted":true,"results":[{"id":"1","title":"","url":"u","snippet":"","source":"s","provider":"p","published_at":"yesterday"}]}`,
			},
		},
		withBackend + "fetch_page": {
			allow: []string{`{"url":"http://a","final_url":"http://a/","title":"","content":"","truncated":false,"content_type":"text/html","fetched_at":"2026-01-02T03:04:05Z","untrusted":true}`},
			deny:  []string{`{}`, `{"url":"http://a","final_url":"http://a/","title":"","content":"","truncated":false,"content_type":"text/html","fetched_at":"2026-01-02T03:04:05Z"}`},
		},
		"generate_media": {
			allow: []string{`{"provider":"p","model":"card-1","mime":"image/png","width":1,"height":1,"bytes":1,"sha256":` + sum + `}`},
			deny: []string{
				`{"model":"card-1","mime":"image/png","width":1,"height":1,"bytes":1,"sha256":` + sum + `}`,
				`{"provider":"p","model":"card-1","mime":"text/html","width":1,"height":1,"bytes":1,"sha256":` + sum + `}`,
				`{"provider":"p","model":"card-1","mime":"image/png","width":1,"height":1,"bytes":1,"sha256":"x"}`,
			},
		},
		"manage_wallet": {
			allow: []string{
				`{"provider":"p","action":"balance","balances":[{"asset":"BTC","amount":"1.5"}]}`,
				`{"provider":"p","action":"transfer","balances":[{"asset":"USD","amount":"9950"}],"transaction":{"id":"t","asset":"USD","amount":"50","destination":"x"}}`,
			},
			deny: []string{
				`{"provider":"p","action":"balance"}`, `{"provider":"p","action":"transfer","balances":[]}`,
				`{"provider":"p","action":"balance","balances":[{"asset":"BTC","amount":1.5}]}`,
				`{"provider":"p","action":"balance","balances":[{"asset":"BTC","amount":"-1"}]}`,
			},
		},
	} {
		r.check(t, name, read(t, name).OutputSchema)
	}
}
