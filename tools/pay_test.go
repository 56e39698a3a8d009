package tools_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/program"
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

// TestPaperForDryRuns: with the provider paper, the wallet is the one without a backend.
func TestPaperForDryRuns(t *testing.T) {
	s := connect(t, tools.Options{Backends: tools.Backends{Wallet: &chain.Options{Provider: "paper"}}})
	got, _ := reply(t, s, "manage_wallet", `{"action":"balance","asset":"USD"}`)
	if !strings.Contains(got["provider"].(string), "no real money") {
		t.Errorf("%v", got)
	}
}
