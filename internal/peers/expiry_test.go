package peers_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// signedIn is a client whose person has signed in.
type signedIn struct {
	look   func(t *testing.T) // calls the tool rec__look, with the person where the client needs them
	tokens func(t *testing.T) (access, refresh string)
	asked  int       // how often the person was
	until  time.Time // from then on the client refreshes the last token by itself; zero = when it is refused
}

// meets takes a person through the pages from an address on, and counts it.
func (s *signedIn) meets(person *browserSession, address string) {
	s.asked++
	if person.open(address); strings.Contains(person.text, `name="login"`) {
		person.send("", "login", "ann", "password", "any")
	}
	person.send("") // consent
}

// signedInBy signs in with a client program.
func signedInBy(t *testing.T, script func(redirect string) *exec.Cmd) *signedIn {
	t.Helper()
	redirect, back := pages(t)
	c, person, s := talk(t, script(redirect)), newBrowserSession(t), &signedIn{}
	var last said
	next := func(t *testing.T) {
		t.Helper()
		if last = c.next(t); last.Open != "" {
			s.meets(person, last.Open)
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
func signedInGo(t *testing.T, g *gate) *signedIn {
	t.Helper()
	person, s := newBrowserSession(t), &signedIn{}
	a := newGoAgent(t, "refreshing", func(address string, _ int) { s.meets(person, address) })
	session := a.connect(t, g.Agents+"/mcp")
	s.look = func(t *testing.T) {
		t.Helper()
		if err := callGo(t, session, "rec__look"); err != nil {
			t.Fatal(err)
		}
	}
	s.tokens = func(t *testing.T) (access, refresh string) {
		token := a.token(t)
		return token.AccessToken, token.RefreshToken
	}
	return s
}

// TestTokensOfSDKsEnd: every SDK gets a new token by itself when one expires. After the token was revoked
// at toolgate and the grant at the issuer, the gate refuses it and the SDK asks its person.
func TestTokensOfSDKsEnd(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	node, script := requirePart(t, "node"), filepath.Join("..", "..", "testdata", "npm", "authorize.mjs")
	python1, python2 := python(t, "mcp1"), python(t, "mcp2")
	issuer := openAuthorizationServer(t, "10")
	rec := recorder.HTTP(t, recorder.Config{Tools: []recorder.Tool{{Name: "look"}}})
	g := serveReady(t, guarded(t, issuer, scopedPay, httpOf("rec", rec, shared())))
	typescript := func(major string) func(t *testing.T) *signedIn {
		return func(t *testing.T) *signedIn {
			return signedInBy(t, func(redirect string) *exec.Cmd {
				return exec.Command(node, script, major, g.Agents+"/mcp", redirect, "refreshing")
			})
		}
	}
	python := func(interpreter string) func(t *testing.T) *signedIn {
		return func(t *testing.T) *signedIn {
			return signedInBy(t, func(redirect string) *exec.Cmd {
				return exec.Command(interpreter, pythonScript(t, filepath.Join("clients", "authorize.py")), g.Agents+"/mcp", redirect, "refreshing")
			})
		}
	}
	clients := map[string]func(t *testing.T) *signedIn{
		"typescript 1": typescript("1"), "typescript 2": typescript("2"), "python 1": python(python1), "python 2": python(python2),
		"go-sdk": func(t *testing.T) *signedIn { return signedInGo(t, g) },
	}
	t.Run("all", func(t *testing.T) { // the subtests end before the gate does
		for name, start := range clients {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := start(t)
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
			})
		}
	})
	wantRuns(t, rec, `{}`, 3*len(clients))
}
