package peers_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// home is the home directory of a client that signs in by itself: it opens pages with the
// system's browser, listens for the browser to come back, and keeps its tokens in files.
type home struct {
	dir  string
	port string // where the client listens
}

func newHome(t *testing.T) home {
	t.Helper()
	h := home{dir: t.TempDir()}
	var err error
	if _, h.port, err = net.SplitHostPort(program.FreeAddress(t)); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(h.dir, "bin", "xdg-open"), "#!/bin/sh\nprintf %s \"$1\" >\"$0.new\" && mv \"$0.new\" \"$0.address\"\n")
	if err := os.Chmod(filepath.Join(h.dir, "bin", "xdg-open"), 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// node returns the command of a script in this home.
func (h home) node(ctx context.Context, node string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, node, args...)
	browser := filepath.Join(h.dir, "bin", "xdg-open")
	cmd.Dir = h.dir
	cmd.Env = append(os.Environ(), "HOME="+h.dir, "MCP_REMOTE_CONFIG_DIR="+filepath.Join(h.dir, "remote"), "BROWSER="+browser,
		"MCP_AUTO_OPEN_ENABLED=true", "MCP_INSPECTOR_SECRET_STORE=file", "PATH="+filepath.Dir(browser)+string(filepath.ListSeparator)+os.Getenv("PATH"))
	return cmd
}

// opened returns the address that the client has opened since the last look, "" for none.
func (h home) opened() string {
	path := filepath.Join(h.dir, "bin", "xdg-open.address")
	text, err := os.ReadFile(path)
	if err != nil || os.Remove(path) != nil {
		return ""
	}
	return string(text)
}

var keptToken = regexp.MustCompile(`"(access|refresh)_token\\?":\s*\\?"([^"\\]+)`) // in JSON, or in a string of JSON

// tokens returns the tokens that the client keeps.
func (h home) tokens(t *testing.T) (access, refresh string) {
	t.Helper()
	err := filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, found := range keptToken.FindAllStringSubmatch(string(text), -1) {
			if found[1] == "access" {
				access = found[2]
			} else {
				refresh = found[2]
			}
		}
		return err
	})
	if err != nil || access == "" || refresh == "" {
		t.Fatalf("the client keeps the tokens %q and %q: %v", access, refresh, err)
	}
	return access, refresh
}

// openingClients call the tool rec__look at an address, and sign in when they have to.
var openingClients = []struct {
	name string
	call func(ctx context.Context, t *testing.T, h home, address string) error
}{
	{"mcp-remote", callThroughRemote},
	{"inspector", callInspector},
	{"mcporter", callPorter},
}

func callThroughRemote(ctx context.Context, t *testing.T, h home, address string) error {
	cmd := h.node(ctx, requirePart(t, "node"), requirePart(t, "mcp-remote/dist/proxy.js"), address, h.port, "--host", "127.0.0.1",
		"--transport", "http-only", "--auth-timeout", "120")
	session, err := sdk.NewClient(&sdk.Implementation{Name: "t", Version: "1"}, nil).Connect(ctx, &sdk.CommandTransport{Command: cmd}, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	result, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "rec__look", Arguments: map[string]any{}})
	if err == nil && result.IsError {
		err = errors.New("the result is an error")
	}
	return err
}

func callInspector(ctx context.Context, t *testing.T, h home, address string) error {
	return quiet(h.node(ctx, requirePart(t, "node"), requirePart(t, "@modelcontextprotocol/inspector/clients/launcher/build/index.js"), "--cli", address,
		"--transport", "http", "--callback-url", "http://127.0.0.1:"+h.port+"/oauth/callback", "--method", "tools/call", "--tool-name", "rec__look"))
}

func callPorter(ctx context.Context, t *testing.T, h home, address string) error {
	return quiet(h.node(ctx, requirePart(t, "node"), requirePart(t, "mcporter/dist/cli.js"), "call",
		"--http-url", address, "--allow-http", "--name", "gate", "--tool", "rec__look"))
}

// quiet runs a command whose output only matters when it fails.
func quiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err == nil && strings.Contains(string(out), `"isError": true`) {
		err = errors.New("the result is an error")
	}
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// TestClientsThatOpenABrowser: clients that sign in by themselves get from an address alone to a
// governed call, with a person who signs in and consents in a real browser. They refresh
// tokens that expired, and come back to the person when the grant has ended.
func TestClientsThatOpenABrowser(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	browser := program.Chromium(t)
	issuer := openAuthorizationServer(t, "10")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	ann := &chromiumPerson{browser: browser}
	t.Run("all", func(t *testing.T) { // the subtests end before the gate does
		for _, client := range openingClients {
			t.Run(client.name, func(t *testing.T) {
				t.Parallel()
				h := newHome(t)
				call := func(page func(t *testing.T, address string)) {
					t.Helper()
					awaitCall(t, h, page, func(ctx context.Context) error { return client.call(ctx, t, h, g.Agents+"/mcp") })
				}
				call(ann.consent)
				first, _ := h.tokens(t)
				g.outlives(t, first)
				call(func(t *testing.T, _ string) { t.Error("the client asks a person in place of a refresh") })
				access, refresh := h.tokens(t)
				if access == first {
					t.Error("the token was not refreshed")
				}
				revokeGrant(t, issuer, access, refresh)
				g.revoke(t, access)
				asked := false
				call(func(t *testing.T, address string) { asked = true; ann.consent(t, address) })
				if !asked {
					t.Error("the client called without a person after the grant ended")
				}
			})
		}
	})
	wantRuns(t, rec, `{}`, 3*len(openingClients))
}

// awaitCall waits for the end of a call of a client, and shows the pages that it opens.
func awaitCall(t *testing.T, h home, page func(t *testing.T, address string), call func(ctx context.Context) error) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*timeout)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		case <-tick.C:
			if address := h.opened(); address != "" {
				page(t, address)
			}
		}
	}
}

// chromiumPerson is ann at a real browser. Clients use it one after the other.
type chromiumPerson struct {
	browser  context.Context
	mu       sync.Mutex
	signedIn bool
}

// consent signs ann in where she is not, and consents.
func (p *chromiumPerson) consent(t *testing.T, address string) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if open := chromedp.Navigate(address); p.signedIn {
		p.press(t, open)
	} else {
		p.press(t, open, chromedp.SendKeys("input[name=login]", "ann"), chromedp.SendKeys("input[name=password]", "any"))
		p.press(t)
		p.signedIn = true
	}
}

// press presses the button of the page that some actions lead to.
func (p *chromiumPerson) press(t *testing.T, actions ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	ctx, stop := context.WithTimeout(p.browser, timeout)
	defer stop()
	if err := chromedp.Do(ctx, append(actions, chromedp.WaitVisible("button[type=submit]"))...); err != nil {
		t.Fatalf("in the browser: %v", err)
	}
	if _, err := chromedp.RunResponse(ctx, chromedp.Click("button[type=submit]", chromedp.NodeVisible)); err != nil {
		t.Fatalf("pressing the button: %v", err)
	}
}
