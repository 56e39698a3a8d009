package cli

import (
	"fmt"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/internal/testkit/devchain"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
)

// exampleGate serves docs/example-wallet on a chain that makes a block whenever a wallet
// looks for its payment.
func exampleGate(t *testing.T) *payingGate {
	t.Helper()
	t.Setenv("WALLET_KEY", devchain.Keys[0])
	g := &payingGate{chain: devchain.Start(t), dir: t.TempDir(), agents: program.FreeAddress(t), admin: program.FreeAddress(t)}
	g.chain.Break(func(method string) devchain.Outcome {
		if method == "eth_getTransactionReceipt" {
			g.chain.Mine(t, 1)
		}
		return devchain.Works
	})
	t.Setenv("RPC_URL", g.chain.URL)
	files := map[string]string{}
	for _, name := range []string{"docs/example-wallet/mcp.json", "docs/example-wallet/backends.json"} {
		text, err := os.ReadFile(filepath.Join(repository(t), filepath.FromSlash(name)))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = strings.Replace(string(text), `"toolgate": {`, fmt.Sprintf(`"toolgate": {"listen": %q, "admin": %q,`, g.agents, g.admin), 1)
	}
	write(t, g.dir, files)
	g.process = start(t, g.dir, "serve", "--config", "docs/example-wallet/mcp.json")
	ready(t, g.admin)
	return g
}

// The commands of docs/approve.md do what it says.
func TestWalletWalkthrough(t *testing.T) {
	parts.Long(t, "needs a chain")
	g := exampleGate(t)
	out := walk(t, g.dir, shellLines(t, "docs/approve.md"))
	for _, promise := range []string{
		`"status": "confirmed"`, "waiting for a person with role approver", "is approved", `unknown recipient "acne"; known are addresses and the names: acme`, "ok: ",
	} {
		if !strings.Contains(out, promise) {
			t.Errorf("the walk through never says %q", promise)
		}
	}
	if paid := g.chain.Balance(t, payee).String(); paid != "110000000000000000" {
		t.Errorf("the payee has %s wei, want 0.11 ETH", paid)
	}
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// The picture in docs/approve.md is of its ticket. TOOLGATE_SCREENSHOTS names the directory
// in which another one is made: the repository's docs/images.
func TestWalletPicture(t *testing.T) {
	kept, err := os.Open(filepath.Join(repository(t), "docs", "images", "ticket.png"))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	if at, err := kept.Stat(); err != nil || at.Size() > 100_000 {
		t.Errorf("the picture has %d bytes, %v; at most 100 kB", at.Size(), err)
	}
	if _, err := png.DecodeConfig(kept); err != nil {
		t.Error(err)
	}
	dir := os.Getenv("TOOLGATE_SCREENSHOTS")
	if dir == "" {
		return
	}
	g := exampleGate(t)
	ticket := ticketID.FindString(g.call(t, `{"action":"transfer","asset":"ETH","amount":0.1,"destination":"acme","idempotency_key":"invoice-2"}`, command.ExitApproval))
	ctx := program.Chromium(t)
	if err := chromedp.Do(ctx, chromedp.EmulateViewport(900, 600), chromedp.Navigate("http://"+g.admin+"/console/approvals/"+ticket), chromedp.WaitVisible("#token"), chromedp.SendKeys("#token", "demo-approver")); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.RunResponse(ctx, chromedp.Click("form[action='/console/login'] button", chromedp.NodeVisible)); err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Do(ctx, chromedp.WaitVisible("textarea[name=reason]")); err != nil {
		t.Fatal(err)
	}
	picture, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "ticket.png"), picture, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
