package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

const payee = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"

// payer is a process of the standard tools with a wallet on a chain.
type payer struct {
	*program.Process
	in io.Writer
}

// backends is a file of backends with a wallet on a chain.
func backends(c *devchain.Chain) string {
	return fmt.Sprintf(`{"wallet": {"provider": "evm", "rpc_url": %q, "chain_id": %d, "confirmations": 1, "wait": "100ms",
		"recipients": {"acme": %q}, "signer": {"private_key": "${WALLET_KEY}"}}}`, c.URL, devchain.ID, payee)
}

// startPayer starts the tools in dir, whose journal other processes may have written.
func startPayer(t *testing.T, dir string, c *devchain.Chain) *payer {
	t.Helper()
	file := filepath.Join(dir, "backends.json")
	if err := os.WriteFile(file, []byte(backends(c)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("toolgate", "tools", "--dir", dir, "--backends", file)
	cmd.Env = append(os.Environ(), "WALLET_KEY="+devchain.Keys[0])
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &payer{program.Launch(t, cmd), in}
	p.write(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`)
	p.write(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return p
}

// write writes a line; a process that was killed reads none.
func (p *payer) write(line string) { _, _ = io.WriteString(p.in, line+"\n") }

func (p *payer) call(id int, args string) {
	p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"manage_wallet","arguments":%s}}`, id, args))
}

// answer returns the structured result of a call.
func (p *payer) answer(t *testing.T, id int) (result struct {
	IsError bool
	Text    string
	Status  string
}) {
	t.Helper()
	var found string
	has := fmt.Sprintf(`"id":%d,`, id)
	p.Await(t, "an answer", func() bool {
		for line := range strings.Lines(p.Out.String()) {
			if strings.Contains(line, has) && strings.HasSuffix(line, "\n") {
				found = line
			}
		}
		return found != ""
	})
	var message struct {
		Error  json.RawMessage
		Result struct {
			IsError           bool
			Content           []struct{ Text string }
			StructuredContent struct {
				Transaction struct{ Status string }
			}
		}
	}
	if err := json.Unmarshal([]byte(found), &message); err != nil || message.Error != nil || len(message.Result.Content) == 0 {
		t.Fatalf("%v: %s", err, found)
	}
	result.IsError, result.Text, result.Status = message.Result.IsError, message.Result.Content[0].Text, message.Result.StructuredContent.Transaction.Status
	return result
}

// requests is more than a payment makes to its node until it is sent.
const requests = 15

// TestKilledPayments: a process that is killed at any request to the node, before or
// after the node did what was asked, has paid at most once; the call repeated by the next
// process pays once, as the chain shows. The key of the account is nowhere.
func TestKilledPayments(t *testing.T) {
	t.Parallel()
	parts.Long(t, "kills processes")
	rounds, first := 8, 7 // around the signature
	if os.Getenv("TOOLGATE_SOAK") != "" {
		rounds, first = 100, 0
	}
	c, dir := devchain.Start(t), t.TempDir()
	var seen strings.Builder
	sent := 0
	for i := range rounds {
		args := fmt.Sprintf(`{"action":"transfer","asset":"ETH","amount":"0.5","destination":"acme","idempotency_key":"order-%d"}`, i)
		killed := startPayer(t, dir, c)
		var asked atomic.Int64
		c.Break(func(string) devchain.Outcome {
			if asked.Add(1) <= int64(first+i%requests) {
				return devchain.Works
			}
			_ = killed.Cmd.Process.Kill() // it may be dead
			return []devchain.Outcome{devchain.Unheard, devchain.Down}[i/requests%2]
		})
		killed.call(2, args)
		killed.Await(t, "the end, or an answer", func() bool { return strings.Contains(killed.Out.String(), `"id":2,`) })
		_ = killed.Cmd.Process.Kill() // as above
		killed.Wait(t)
		c.Break(nil)

		next := startPayer(t, dir, c)
		next.call(2, args)
		if got := next.answer(t, 2); got.IsError || got.Status != "pending" && got.Status != "confirmed" {
			t.Fatalf("round %d: %+v", i, got)
		}
		c.Mine(t, 1)
		next.call(3, args)
		if got := next.answer(t, 3); got.Status != "confirmed" {
			t.Fatalf("round %d: %+v", i, got)
		}
		next.Kill(t)
		want := new(big.Int).Mul(big.NewInt(int64(i+1)), big.NewInt(5e17))
		if got := c.Balance(t, payee); got.Cmp(want) != 0 {
			t.Fatalf("round %d: the payee has %s, want %s", i, got, want)
		}
		seen.WriteString(killed.Out.String() + killed.Log.String() + next.Out.String() + next.Log.String())
		if n := len(c.Sent()); n > sent {
			sent = n
		}
	}
	if sent < rounds {
		t.Errorf("%d transactions were sent in %d rounds", sent, rounds)
	}
	absent(t, dir, seen.String(), devchain.Keys[0])
}

// absent holds texts and the files of dir to a secret that none of them has, as digits or
// as bytes.
func absent(t *testing.T, dir, texts, secret string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil {
			texts += string(text)
		}
	}
	var raw []byte
	if _, err := fmt.Sscanf(secret, "%x", &raw); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(strings.ToLower(texts), secret) || strings.Contains(texts, string(raw)) {
		t.Error("the key is in an output or a file")
	}
}
