package console_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/testkit/npm"
)

// Of a large company: what the pages have to show. The index has its own test with a million records; here
// each of its pages is full.
const (
	hugeServers = 50
	hugeTools   = 10_000
	hugeTickets = 500
	hugePage    = 100 << 10 // bytes of a page, as they are sent
)

// crowd has as much as a large company. It implements what talker does, and console.ClientSessions.
type crowd struct{ talker }

func (k crowd) List(context.Context) ([]console.Tool, error) {
	all := make([]console.Tool, hugeTools)
	for i := range all {
		server := fmt.Sprintf("server-%02d", i%hugeServers)
		all[i] = console.Tool{Server: server, Name: fmt.Sprintf("tool_%05d", i), Exposed: fmt.Sprintf("%s__tool_%05d", server, i), Title: "Does what the others do", State: console.ToolServed, Digest: "sha256:1212"}
		if i%10 == 7 {
			all[i].State, all[i].Reason = console.ToolQuarantined, "its input schema is no JSON schema"
		}
	}
	return all, nil
}

func (k crowd) Search(_ context.Context, q index.Query) (index.Page, error) {
	p := index.Page{Next: "MSBh"}
	for i := range q.Limit {
		c := k.call()
		c.ID, c.Time = fmt.Sprintf("dec_%026d", i), c.Time.Add(-time.Duration(i)*time.Second)
		p.Calls = append(p.Calls, c)
	}
	return p, nil
}

// crowdedRooms has a session of every agent.
type crowdedRooms struct{ guests }

func (g crowdedRooms) List(ctx context.Context) (all []console.ClientSession, err error) {
	some, err := g.guests.List(ctx)
	for i := range 1000 {
		s := some[i%len(some)]
		s.ID = fmt.Sprintf("ses_%026d", i)
		all = append(all, s)
	}
	return all, err
}

// huge is the console of a large company.
func huge(t *testing.T) (*listener, string) {
	t.Helper()
	s := scene{name: "huge", status: console.Status{Ready: true, Revision: "sha256:4f2a9c03b7d14c7c8f60b3c7d0e1a5f2"}, activity: counts(4000), options: func(o *console.Options) {
		k := crowd{talker{adviser: new(adviser)}}
		o.Calls, o.Tools, o.Sessions = k, k, crowdedRooms{guests(k)}
	}}
	for i := range hugeServers {
		u := server(fmt.Sprintf("server-%02d", i), "ready")
		u.Tools = hugeTools / hugeServers
		if i%10 == 7 {
			u.Tools, u.Quarantined, u.Withheld = 0, u.Tools, map[string]string{}
			for n := range u.Quarantined {
				u.Withheld[fmt.Sprintf("tool_%05d", n*hugeServers+i)] = "its input schema is no JSON schema\nhint: toolgate tool diff"
			}
		}
		s.status.Upstreams = append(s.status.Upstreams, u)
	}
	l, base := stage(t, s)
	for i := range hugeTickets {
		h := transfer(fmt.Sprint(i), "acct-4471 Northwind Paper")
		h.Principal.Subject = fmt.Sprintf("agent-%d", i)
		l.holds(h)
	}
	return l, base
}

// No page of a large company weighs more than hugePage.
func TestHugeCompany(t *testing.T) {
	l, _ := huge(t)
	oda, ann := newBrowser(l).signIn("t-oda"), newBrowser(l).signIn("t-ann")
	for _, page := range append(l.addresses(), "/console/tools?state=quarantined", "/console/tools?text=tool_0") {
		for name, b := range map[string]*browser{"oda": oda, "ann": ann} {
			if strings.HasPrefix(page, "/console/servers/server-") && !strings.HasSuffix(page, "07") {
				continue // as the others are
			}
			begun := time.Now()
			w := b.do("GET", page, nil)
			t.Logf("%-60s %s %d %6d bytes %s", page, name, w.Code, w.Body.Len(), time.Since(begun).Round(time.Millisecond/10))
			if w.Body.Len() > hugePage {
				t.Errorf("%s has %d bytes for %s", page, w.Body.Len(), name)
			}
		}
	}
}

// hugeCompany holds that the pages of a large company fit on the screen and are whole for axe-core.
func hugeCompany(t *testing.T, browser context.Context) {
	axe, err := os.ReadFile(npm.File(t, "axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	_, base := huge(t)
	visits := map[string][]string{
		"t-ann": {"/console/approvals", "/console/approvals?view=team"},
		"t-oda": {"/console/", "/console/servers", "/console/servers/server-07", "/console/tools", "/console/policy/matrix", "/console/calls", "/console/calls/dec_1", "/console/sessions"},
	}
	for _, s := range []screen{screens[0], screens[3]} {
		t.Run(s.name, func(t *testing.T) {
			for who, pages := range visits {
				p := sitting(t, browser, base, s)
				if s.dark {
					p.loads(string(axe))
				}
				p.signIn(who, "/console/approvals")
				for _, page := range pages {
					p.open(page)
					p.shot(strings.Trim("huge"+strings.ReplaceAll(page, "/", "-"), "-"))
					if s.dark {
						p.sound(page, "")
					} else if wide := ask[float64](p, "document.documentElement.scrollWidth"); wide > float64(s.width) {
						t.Errorf("%s is %v wide on a screen of %d", page, wide, s.width)
					}
				}
			}
		})
	}
}
