package peers_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// signedIn is a client that a person signs in to.
type signedIn struct {
	look   func(t *testing.T) // calls the tool rec__look, with the person where the client needs them
	tokens func(t *testing.T) (access, refresh string)
	asked  int       // how often the person was
	until  time.Time // from then on the client refreshes the last token by itself; zero = when it is refused
}

// signedInBy signs in with a client program.
func signedInBy(t *testing.T, ann *chromiumPerson, script func(redirect string) *exec.Cmd) *signedIn {
	t.Helper()
	redirect, back := pages(t)
	c, s := talk(t, script(redirect)), &signedIn{}
	var last said
	next := func(t *testing.T) {
		t.Helper()
		if last = c.next(t); last.Open != "" {
			s.asked++
			ann.consent(t, last.Open)
			c.tell(t, <-back)
		}
	}
	s.look = func(t *testing.T) {
		t.Helper()
		c.tell(t, "rec__look")
		for next(t); last.Open != ""; {
			next(t)
		}
		s.until = time.UnixMilli(int64(last.Expires * 1000))
		if last.Error != "" || strings.Contains(string(last.Result), `"isError":true`) {
			t.Fatalf("look: %+v\n%s", last, c.Log)
		}
	}
	s.tokens = func(*testing.T) (access, refresh string) { return last.Token, last.Refresh }
	next(t)
	return s
}

// signedInGo signs in with the official Go SDK, in this process.
func signedInGo(t *testing.T, g *gate, ann *chromiumPerson) *signedIn {
	t.Helper()
	s := &signedIn{}
	a := newGoAgent(t, "", func(address string, n int) {
		s.asked = n
		ann.consent(t, address)
	})
	session := a.connect(t, g.Agents+"/mcp")
	looks := 0
	s.look = func(t *testing.T) {
		t.Helper()
		looks++
		if err := callGo(t, session, "rec__look"); err != nil {
			t.Fatal(err)
		}
	}
	s.tokens = func(t *testing.T) (access, refresh string) {
		token := a.granted
		if looks > 1 { // before that the token may have been refreshed already, 10 s before it expires
			token = a.token(t)
		}
		return token.AccessToken, token.RefreshToken
	}
	return s
}

// TestClientsGoTheWholeWay: with an address alone, every client learns whom to ask, registers itself,
// has a person sign in and consent in a real browser, and calls a tool. It gets a new token by
// itself when one expires. After the token was revoked at toolgate and the grant at the issuer,
// the gate refuses it, and the client asks its person again. All are behind one address.
func TestClientsGoTheWholeWay(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, script := requirePart(t, "node"), filepath.Join("..", "..", "testdata", "npm", "authorize.mjs")
	python1, python2 := python(t, "mcp1"), python(t, "mcp2")
	ann := &chromiumPerson{browser: program.Chromium(t)}
	issuer := openAuthorizationServer(t, "10")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	by := func(name string, args ...string) func(t *testing.T) *signedIn {
		return func(t *testing.T) *signedIn {
			return signedInBy(t, ann, func(redirect string) *exec.Cmd {
				return exec.Command(name, append(args, g.Agents+"/mcp", redirect, "")...)
			})
		}
	}
	at := func(call func(ctx context.Context, t *testing.T, h home, address string) error) func(t *testing.T) *signedIn {
		return func(t *testing.T) *signedIn { return signedInAt(t, g, ann, call) }
	}
	clients := map[string]func(t *testing.T) *signedIn{
		"typescript 1": by(node, script, "1"), "typescript 2": by(node, script, "2"),
		"python 1":   by(python1, pythonScript(t, filepath.Join("clients", "authorize.py"))),
		"python 2":   by(python2, pythonScript(t, filepath.Join("clients", "authorize.py"))),
		"go-sdk":     func(t *testing.T) *signedIn { return signedInGo(t, g, ann) },
		"mcp-remote": at(callThroughRemote), "inspector": at(callInspector), "mcporter": at(callPorter),
	}
	t.Run("all", func(t *testing.T) { // the subtests end before the gate does
		for name, start := range clients {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holdsWholeWay(t, g, issuer, start(t))
			})
		}
	})
	wantRuns(t, rec, `{}`, 3*len(clients))
}

// holdsWholeWay holds a client to TestClientsGoTheWholeWay.
func holdsWholeWay(t *testing.T, g *gate, issuer string, s *signedIn) {
	t.Helper()
	s.look(t)
	first, _ := s.tokens(t)
	g.outlives(t, first)
	program.Await(t, "the client takes its token as expired", func() bool { return time.Now().After(s.until) })
	s.look(t)
	access, refresh := s.tokens(t)
	if access == first || s.asked != 1 {
		t.Errorf("the token was not refreshed, or the person was asked %d times", s.asked)
	}
	revokeGrant(t, issuer, access, refresh)
	g.revoke(t, access)
	s.look(t)
	if last, _ := s.tokens(t); last == access || s.asked != 2 {
		t.Errorf("after the grant ended the person was asked %d times", s.asked)
	}
}
