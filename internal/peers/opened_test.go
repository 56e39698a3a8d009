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

	"github.com/toolgate/toolgate/internal/testkit/program"
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

// signedInAt is a client program that signs in by itself, in a home of its own. call runs it
// once: it calls the tool rec__look at an address.
func signedInAt(t *testing.T, g *gate, ann *chromiumPerson, call func(ctx context.Context, t *testing.T, h home, address string) error) *signedIn {
	t.Helper()
	h, s := newHome(t), &signedIn{}
	s.tokens = h.tokens
	s.look = func(t *testing.T) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), 2*timeout)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- call(ctx, t, h, g.Agents+"/mcp") }()
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
					s.asked++
					ann.consent(t, address)
				}
			}
		}
	}
	return s
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
