package jsonrpc_test

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// TestKey: two ids have one key exactly when they are one id.
func TestKey(t *testing.T) {
	tests := []struct {
		a, b string
		same bool
	}{
		{`1`, `1`, true},
		{`1`, `"1"`, false},
		{`-0`, `0`, true},
		{`-1`, `1`, false},
		{`9007199254740993`, `9007199254740992`, false},
		{`"a"`, `"\u0061"`, true},
		{`"é"`, `"\u00e9"`, true},
		{`"\""`, `"\u0022"`, true},
		{`"\\"`, `"\u005c"`, true},
		{`"\u2028"`, "\"\u2028\"", true},
		{`"a"`, `"A"`, false},
		{`""`, `null`, false},
		{`""`, ``, false},
		{`"{}"`, `{}`, false},
	}
	for _, tt := range tests {
		if got := jsonrpc.Key(json.RawMessage(tt.a)) == jsonrpc.Key(json.RawMessage(tt.b)); got != tt.same {
			t.Errorf("%s and %s: the same %v, want %v", tt.a, tt.b, got, tt.same)
		}
	}
}

func id(text string) json.RawMessage { return json.RawMessage(text) }

// TestPool: what was put under an id is matched once, by that id only.
func TestPool(t *testing.T) {
	var p jsonrpc.Pool[string]
	if _, ok := p.Match(id(`1`), nil); ok {
		t.Error("an empty pool has something")
	}
	if !p.Put(id(`1`), "number") || !p.Put(id(`"1"`), "string") {
		t.Error(`1 and "1" are taken for one id`)
	}
	if p.Put(id(`"\u0031"`), "another") {
		t.Error("an id was given twice")
	}
	for _, bad := range []string{``, `null`, `1.0`, `{}`, `[1]`, `true`} {
		if p.Put(id(bad), "bad") {
			t.Errorf("%q was taken as an id", bad)
		}
	}
	if v, ok := p.Peek(id(`"\u0031"`)); !ok || v != "string" {
		t.Errorf("peek: %q, %v", v, ok)
	}
	if v, ok := p.Match(id(`1`), func(v string) bool { return v != "number" }); ok || v != "" {
		t.Errorf("matched %q, which was not wanted", v)
	}
	if v, ok := p.Match(id(`1`), nil); !ok || v != "number" {
		t.Errorf("match: %q, %v", v, ok)
	}
	if _, ok := p.Match(id(`1`), nil); ok {
		t.Error("matched twice")
	}
	if v, ok := p.Match(id(`"1"`), nil); !ok || v != "string" {
		t.Errorf("match: %q, %v", v, ok)
	}
	if !p.Put(id(`1`), "again") {
		t.Error("a matched id cannot be used again")
	}
}

// TestPoolFifty: fifty requests at a time each get the one response with their
// id (seed 000: fifty parallel tools), whatever the order of arrival.
func TestPoolFifty(t *testing.T) {
	const n = 50
	var p jsonrpc.Pool[int]
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { p.Put(id(fmt.Sprintf(`"req_%d"`, n-1-i)), n-1-i) })
	}
	wg.Wait()
	for i := range n {
		wg.Go(func() {
			if v, ok := p.Match(id(fmt.Sprintf(`"req_%d"`, i)), nil); !ok || v != i {
				t.Errorf("request %d got %d, %v", i, v, ok)
			}
		})
	}
	wg.Wait()
}
