package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
)

// TestCheckComparesWalletAndPolicy: check warns of every difference between the file of
// backends, by which the wallet pays, and data.facts, by which the policy judges.
func TestCheckComparesWalletAndPolicy(t *testing.T) {
	t.Parallel()
	const (
		acme, other, usdc = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x52908400098527886E0F7030069857D2E4169EE7", "0x8617E340B3D01FA5F11F306F4090FD50E238070D"
		amount            = `"amount": {"decimals": {"USDC": 6}}`
		asset             = `"asset": {"labels": {"USDC": ["` + usdc + `"]}}`
		destination       = `"destination": {"labels": {"acme": ["` + acme + `"]}}`
		right             = amount + "," + asset + "," + destination
	)
	for _, c := range []struct {
		name, wallet, facts string
		says, hint          string // "" = no warning
	}{
		{"the same in both", "", right, "", ""},
		{"several addresses of a label", "", strings.Replace(right, acme, acme+`","`+other, 1), "", ""},
		{"other decimals", "", strings.Replace(right, "6", "18", 1), "asset USDC has 6 decimals in wallet.json and 18 in data.facts.manage_wallet.amount.decimals", "state the decimals of the contract in both"},
		{"an asset of the wallet alone", "", asset + "," + destination, "asset USDC of wallet.json has no decimals in the policy", `add "USDC": 6 to data.facts.manage_wallet.amount.decimals`},
		{"the chain's asset of the wallet alone", `"symbol": "POL",`, right, "asset POL of wallet.json has no decimals in the policy", `add "POL": 18 to`},
		{"a token at another address", "", strings.Replace(right, usdc, other, 1), "USDC is " + usdc + " in wallet.json and " + other + " in data.facts.manage_wallet.asset.labels", "state the right address in both"},
		{"a recipient at another address", "", strings.Replace(right, acme, other, 1), "acme is " + acme + " in wallet.json and " + other + " in data.facts.manage_wallet.destination.labels", "state the right address in both"},
		{"a recipient of the wallet alone", "", amount + "," + asset, "recipient acme of wallet.json is no label of the policy", `add "acme": ["` + acme + `"] to data.facts.manage_wallet.destination.labels`},
		{"a label of the policy alone", "", strings.Replace(right, `{"acme"`, `{"beta": ["`+other+`"], "acme"`, 1), "label beta of data.facts.manage_wallet.destination.labels is no recipient of wallet.json", "add it to wallet.recipients, or remove the label"},
		{"a file with a fault", `"chain": 1,`, right, `wallet.chain`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, map[string]string{
				"mcp.json": fmt.Sprintf(`{
					"mcpServers": {"standard": {"command": "toolgate", "args": ["tools", "--backends", "wallet.json"], "env": {"KEY": "unused"}, "sandbox": "off"}},
					"toolgate": {"servers": {"standard": {"prefix": ""}}, "policy": {"data": {"facts": {"manage_wallet": {%s}}}}}}`, c.facts),
				"wallet.json": fmt.Sprintf(`{"wallet": {"provider": "evm", "rpc_url": "http://127.0.0.1:1", "chain_id": 1337, %s
					"tokens": {"USDC": {"address": %q, "decimals": 6}}, "recipients": {"acme": %q}, "signer": {"private_key": "${KEY}"}}}`, c.wallet, usdc, acme),
			})
			code, out := toolgate(t, dir, "check", "--offline")
			warned := strings.Contains(out, "wallet.json") && strings.Contains(out, "warning")
			if code != command.ExitOK || !strings.Contains(out, c.says) || !strings.Contains(out, c.hint) || c.says != "" && !warned {
				t.Errorf("exit %d:\n%s", code, out)
			}
			want := command.ExitOK
			if c.says != "" {
				want = command.ExitUsage
			}
			if code, out := toolgate(t, dir, "check", "--offline", "--strict", "--allow", "configuration,no-sandbox"); code != want {
				t.Errorf("strict: exit %d, want %d:\n%s", code, want, out)
			}
		})
	}
}
