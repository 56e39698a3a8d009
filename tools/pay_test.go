package tools_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/fact"
	"github.com/toolgate/toolgate/registry/contract"
	"github.com/toolgate/toolgate/tools"
	"github.com/toolgate/toolgate/tools/chain"
)

func TestMain(m *testing.M) { os.Exit(program.Run(m)) }

// TestWalletOnAChain: results match the contract, and refusals are results that a model can
// act on.
func TestWalletOnAChain(t *testing.T) {
	c := devchain.Start(t)
	opts := tools.Options{Backends: tools.Backends{Wallet: &chain.Options{
		Provider: "evm", URL: c.URL, ChainID: devchain.ID, Confirmations: 1, Wait: 200 * time.Millisecond, Signer: chain.Signer{PrivateKey: devchain.Keys[0]},
	}}}
	s := connect(t, opts)
	const args = `{"action":"transfer","asset":"ETH","amount":"1.000000000000000001","destination":"0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed","idempotency_key":"one"}`
	got, _ := reply(t, s, "manage_wallet", args)
	if tx := got["transaction"].(map[string]any); tx["status"] != "pending" || tx["units"] != "1000000000000000001" {
		t.Errorf("transaction %v", tx)
	}
	c.Mine(t, 1)
	got, _ = reply(t, s, "manage_wallet", `{"action":"reconcile"}`)
	if all := got["transactions"].([]any); len(all) != 1 || all[0].(map[string]any)["status"] != "confirmed" {
		t.Errorf("transactions %v", all)
	}
	got, _ = reply(t, s, "manage_wallet", strings.Replace(args, `"1.000000000000000001"`, "1.000000000000000001", 1))
	if tx := got["transaction"].(map[string]any); tx["status"] != "confirmed" {
		t.Errorf("transaction %v", tx)
	}
	got, _ = reply(t, s, "manage_wallet", `{"action":"balance","asset":"ETH"}`)
	if got["provider"] != "EVM chain eip155:1337" || !strings.HasPrefix(got["balances"].([]any)[0].(map[string]any)["amount"].(string), "9998.99") {
		t.Errorf("balance %v", got)
	}
	for args, want := range map[string]string{
		`{"action":"balance","asset":"DOGE"}`:                                        `unknown asset "DOGE": this wallet has ETH`,
		strings.Replace(args, `"1.000000000000000001"`, "1e5", 1):                    "idempotency key of another transfer",
		strings.Replace(strings.Replace(args, `"1.`, `"99999.`, 1), "one", "two", 1): "insufficient funds: 9998.99",
	} {
		if refused, err := call(t, s, "manage_wallet", args); err != nil || !refused.IsError || !strings.Contains(refused.Content[0].(*mcp.TextContent).Text, want) {
			t.Errorf("%s: %+v, %v", args, refused, err)
		}
	}
	for args, want := range map[string]string{
		`{"action":"steal"}`: "unknown action",
		strings.Replace(args, `"1.000000000000000001"`, "{}", 1): "",
	} {
		if got, err := call(t, s, "manage_wallet", args); err == nil && !got.IsError || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", args, got, err)
		}
	}
}

// stated reads the facts that the contract of a tool declares, with more on top.
func stated(t *testing.T, tool, more string) *fact.Set {
	t.Helper()
	c, _ := contract.WithBackend(tool)
	declared := map[string]map[string]any{}
	for _, part := range []string{string(c.Facts), more} {
		var members map[string]map[string]any
		if err := json.Unmarshal([]byte(part), &members); err != nil {
			t.Fatal(err)
		}
		for name, m := range members {
			if declared[name] == nil {
				declared[name] = map[string]any{}
			}
			maps.Copy(declared[name], m)
		}
	}
	raw, err := json.Marshal(declared)
	if err != nil {
		t.Fatal(err)
	}
	s, err := fact.New(raw)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// members reads the members of a JSON object as text.
func members(t *testing.T, object []byte) map[string]string {
	t.Helper()
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(object, &raw); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for name, v := range raw {
		out[name] = strings.Trim(string(v), `"`)
	}
	return out
}

// amounts are amounts as agents may write them.
var amounts = []string{
	`1`, `1.5`, `"1.5"`, `"0.01"`, `0.01`, `1e1`, `"1e1"`, `10e-1`, `1.0`, `"007"`, `"1,5"`, `" 1"`, `"+1"`, `-1`, `0`, `"0"`, `"-0.0"`, `0.001`, `"1.0000000000000000001"`,
	`1.000000000000000001`, `"0.000000000000000001"`, `null`, `[1]`, `{}`, `true`, `""`, `1e400`, `1e77`, `"0x1"`, `"1_0"`, `"١"`, `"Infinity"`, `"NaN"`, `"1e-18"`,
}

// TestFactsAreWhatIsPaid: what a policy judges is what the wallet on a chain pays,
// however the arguments are named and written.
func TestFactsAreWhatIsPaid(t *testing.T) {
	const acme = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
	c := devchain.Start(t)
	s := connect(t, tools.Options{Backends: tools.Backends{Wallet: &chain.Options{
		Provider: "evm", URL: c.URL, ChainID: devchain.ID, Confirmations: 1, Wait: time.Millisecond, Signer: chain.Signer{PrivateKey: devchain.Keys[0]},
		Recipients: map[string]string{"acme": acme},
	}}})
	facts := stated(t, "manage_wallet", `{"amount": {"decimals": {"ETH": 18}}, "destination": {"labels": {"acme": ["`+acme+`"]}}}`)
	paid := 0
	for i, amount := range amounts {
		for j, names := range [][]string{{"amount", "destination"}, {"value", "to"}, {"value", "destinationAddress"}} {
			destination := []string{"acme", acme, "0xde709f2102306220921060314715629080e2fb77", strings.ToLower(acme), "bob"}[(i+j)%5]
			args := fmt.Sprintf(`{"action":"transfer","asset":"ETH",%q:%s,%q:%q,"idempotency_key":"%d-%d"}`, names[0], amount, names[1], destination, i, j)
			got, err := call(t, s, "manage_wallet", args)
			judged := members(t, facts.Of([]byte(args)))
			if err != nil || got.IsError {
				continue // nothing was paid
			}
			paid++
			tx := got.StructuredContent.(map[string]any)["transaction"].(map[string]any)
			if tx["units"] != judged["amount"] || tx["asset"] != judged["asset"] || (tx["recipient"] == acme) != (judged["destination"] == "acme") || judged["destination"] == "" {
				t.Errorf("%s paid %v, judged %v", args, tx, judged)
			}
		}
	}
	if paid < 10 {
		t.Errorf("only %d payments", paid)
	}
	for _, args := range []string{
		`{"action":"transfer","asset":"ETH","amount":1,"value":1,"to":"acme","idempotency_key":"x"}`,
		`{"action":"transfer","asset":"ETH","amount":null,"value":1,"to":"acme","idempotency_key":"x"}`,
		`{"action":"transfer","asset":"ETH","value":1,"to":"acme","destination":"acme","idempotency_key":"x"}`,
		`{"action":"transfer","asset":"ETH","tokenAddress":"` + acme + `","value":1,"to":"acme","idempotency_key":"x"}`,
	} {
		if got, err := call(t, s, "manage_wallet", args); err == nil && !got.IsError {
			t.Errorf("%s was paid: %+v", args, got)
		}
		if judged := members(t, facts.Of([]byte(args))); len(judged) == 3 {
			t.Errorf("%s: every fact is there: %v", args, judged)
		}
	}
}

// TestFactsAreWhatIsMoved is the same for the paper wallet.
func TestFactsAreWhatIsMoved(t *testing.T) {
	s := connect(t, tools.Options{})
	facts := stated(t, "manage_wallet", `{"amount": {"decimals": {"USD": 2, "BTC": 8}}}`)
	moved := 0
	for i, amount := range amounts {
		args := fmt.Sprintf(`{"action":"transfer","asset":%q,"amount":%s,"destination":"acct-1"}`, []string{"USD", "BTC"}[i%2], amount)
		got, err := call(t, s, "manage_wallet", args)
		judged := members(t, facts.Of([]byte(args)))
		if err != nil || got.IsError || judged["amount"] == "" {
			continue // nothing has moved, or the policy would deny it
		}
		moved++
		tx := got.StructuredContent.(map[string]any)["transaction"].(map[string]any)
		units, err := text.Units(tx["amount"].(string), map[string]int{"USD": 2, "BTC": 8}[tx["asset"].(string)])
		if err != nil || units.String() != judged["amount"] || tx["asset"] != judged["asset"] || tx["destination"] != judged["destination"] {
			t.Errorf("%s moved %v, judged %v, %v", args, tx, judged, err)
		}
	}
	if moved < 4 {
		t.Errorf("only %d transfers", moved)
	}
}

// TestPixelsOfTheContract: the sizes in the facts of generate_media are those of the
// renderer.
func TestPixelsOfTheContract(t *testing.T) {
	facts, s := stated(t, "generate_media", "{}"), connect(t, tools.Options{})
	for _, aspect := range []string{``, `"1:1"`, `"4:3"`, `"3:4"`, `"16:9"`, `"9:16"`} {
		args := `{"prompt":"x","model":"card-1","aspect_ratio":` + aspect + `}`
		if aspect == "" {
			args = `{"prompt":"x","model":"card-1"}`
		}
		got, _ := reply(t, s, "generate_media", args)
		if want := fmt.Sprint(got["width"].(float64) * got["height"].(float64)); members(t, facts.Of([]byte(args)))["pixels"] != want {
			t.Errorf("%s has %s pixels: judged %s", args, want, facts.Of([]byte(args)))
		}
	}
}

// TestPaperForDryRuns: with the provider paper, the wallet is the one without a backend.
func TestPaperForDryRuns(t *testing.T) {
	s := connect(t, tools.Options{Backends: tools.Backends{Wallet: &chain.Options{Provider: "paper"}}})
	got, _ := reply(t, s, "manage_wallet", `{"action":"balance","asset":"USD"}`)
	if !strings.Contains(got["provider"].(string), "no real money") {
		t.Errorf("%v", got)
	}
}
