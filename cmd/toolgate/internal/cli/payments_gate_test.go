package cli

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// payGate is a configuration whose wallet pays on a chain, and holds transfers above 10.
const payGate = `{
  "mcpServers": {"standard": {"command": "toolgate", "args": ["tools", "--backends", "backends.json"], "env": {"WALLET_KEY": "${WALLET_KEY}"}}},
  "toolgate": {
    "listen": %q, "admin": %q, "policy": {"path": "policy"}, "approvals": {"hold": "0s"}, "servers": {"standard": {"prefix": ""}},
    "identity": {"tokens": [
      {"subject": "demo-treasurer", "roles": ["treasurer"], "sha256": "4a3d5607eaac23278f453de3c102942e90598bf2f730b1695b844d5f2ebc18d7"},
      {"subject": "demo-approver", "roles": ["approver"], "sha256": "62e09a13d5dff5e69890e2d16f3a5d6f2d113a7369d08a6e62eabde7cc26eda6"}
    ]}
  }
}`

const payPolicy = `package toolgate

import rego.v2

allow contains {"rule": "all", "reason": "this is a test"}

hold contains {"rule": "above", "reason": "more than 10", "approval": {"roles": ["approver"], "ttl": "15m"}} if input.arguments.amount > 10
`

// payingGate is a toolgate serve with its chain.
type payingGate struct {
	*process
	chain              *devchain.Chain
	dir, agents, admin string
}

func (g *payingGate) restart(t *testing.T) {
	t.Helper()
	g.process = start(t, g.dir, "serve", "--config", "mcp.json")
	ready(t, g.admin)
}

// transfer calls manage_wallet, holds the command to its exit code, and returns its output.
func (g *payingGate) transfer(t *testing.T, amount int, to, key string, want int) string {
	t.Helper()
	return g.call(t, fmt.Sprintf(`{"action":"transfer","asset":"ETH","amount":%d,"destination":%q,"idempotency_key":%q}`, amount, to, key), want)
}

func (g *payingGate) call(t *testing.T, args string, want int) string {
	t.Helper()
	code, out := toolgate(t, g.dir, "tool", "call", "manage_wallet", "--args", args, "--addr", "http://"+g.agents, "--token", "demo-treasurer", "-o", "json")
	if code != want {
		t.Fatalf("%s: exit code %d, want %d\n%s", args, code, want, out)
	}
	return out
}

var ticketID = regexp.MustCompile(`apr_[0-9A-Z]{26}`)

// approve approves the ticket that an answer names.
func (g *payingGate) approve(t *testing.T, answer string) {
	t.Helper()
	if status := approveOver(t, g.admin, ticketID.FindString(answer)); !strings.HasPrefix(status, "200") {
		t.Fatalf("approving what %s asks for: %s", answer, status)
	}
}

// paid makes a block, and holds the payee to an amount on the chain.
func (g *payingGate) paid(t *testing.T, ether string) {
	t.Helper()
	g.chain.Mine(t, 1)
	if got := g.chain.Balance(t, payee).String(); got != ether+"000000000000000000" {
		t.Fatalf("the payee has %s wei, want %s ETH", got, ether)
	}
}

// TestPaymentsThroughTheGate: a transfer above the threshold waits for its approval and is
// then paid once, as the chain shows; also when toolgate is killed between the signature and
// the receipt.
func TestPaymentsThroughTheGate(t *testing.T) {
	parts.Long(t, "starts several programs")
	t.Setenv("WALLET_KEY", devchain.Keys[0])
	g := &payingGate{chain: devchain.Start(t), dir: t.TempDir(), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
	write(t, g.dir, map[string]string{
		"mcp.json": fmt.Sprintf(payGate, g.agents, g.admin), "policy/p.rego": payPolicy,
		"backends.json": backends(g.chain),
	})
	g.restart(t)

	g.transfer(t, 2, "acme", "small", command.ExitOK)
	g.paid(t, "2")
	held := g.transfer(t, 20, "acme", "large", command.ExitApproval)
	g.paid(t, "2")
	g.approve(t, held)
	first := g.transfer(t, 20, "acme", "large", command.ExitOK)
	if again := g.transfer(t, 20, "acme", "large", command.ExitOK); !strings.Contains(again, `"status": "replayed"`) || strings.Contains(first, "replayed") {
		t.Errorf("first %s\nagain %s", first, again)
	}
	g.paid(t, "22")

	g.approve(t, g.transfer(t, 30, "acme", "killed", command.ExitApproval))
	g.chain.Break(func(method string) devchain.Outcome {
		if method != "eth_sendRawTransaction" {
			return devchain.Works
		}
		_ = g.cmd.Process.Kill() // it may be dead
		return devchain.Unheard
	})
	g.transfer(t, 30, "acme", "killed", command.ExitUnreachable)
	<-g.done
	g.chain.Break(nil)
	g.restart(t)
	// Whether the call took effect is not known to toolgate. The wallet asks the chain.
	g.transfer(t, 30, "acme", "killed", command.ExitTool)
	g.paid(t, "52")
	if out := g.call(t, `{"action":"reconcile"}`, command.ExitOK); !strings.Contains(out, `"idempotency_key": "killed"`) || !strings.Contains(out, `"status": "confirmed"`) {
		t.Errorf("reconcile: %s", out)
	}
	// The same payment, asked for in other words, is another ticket and no other payment.
	g.approve(t, g.transfer(t, 30, payee, "killed", command.ExitApproval))
	g.transfer(t, 30, payee, "killed", command.ExitOK)
	g.paid(t, "52")
	g.backupHasTheJournal(t)
}

// backupHasTheJournal: a wallet on a restored journal knows the payments of the backup, and
// the restore says that it knows no later ones.
func (g *payingGate) backupHasTheJournal(t *testing.T) {
	t.Helper()
	if code, out := toolgate(t, g.dir, "backup", "--config", "mcp.json", "saved.tar"); code != command.ExitOK {
		t.Fatalf("exit code %d: %s", code, out)
	}
	code, out := toolgate(t, g.dir, "restore", "--config", "mcp.json", "--state", "restored", "saved.tar")
	if code != command.ExitOK || !strings.Contains(out, "it has forgotten later payments") {
		t.Fatalf("exit code %d: %s", code, out)
	}
	w := startPayer(t, filepath.Join(g.dir, "restored", "tools"), g.chain)
	w.call(2, `{"action":"transfer","asset":"ETH","amount":30,"destination":"acme","idempotency_key":"killed"}`)
	if got := w.answer(t, 2); got.IsError || got.Status != "confirmed" {
		t.Errorf("%+v", got)
	}
	w.Kill(t)
	g.paid(t, "52")
}
