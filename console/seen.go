package console

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

const (
	seenPath = accessPath + "/seen"
	// seenRecords is how many of the last records of the trail at hand are read, and listedSeen how
	// many principals and sign-ins are shown at most.
	seenRecords, listedSeen = 5000, 100
)

// Seen is who came lately, as the last records of the trail of this process say.
type Seen struct {
	Since      time.Time       `json:"since,omitzero"` // time of the first record that was read; zero = there is none
	Principals []SeenPrincipal `json:"principals"`     // of calls, the latest first, at most 100
	SignIns    []SignIn        `json:"sign_ins"`       // the latest first, at most 100
}

// A SeenPrincipal is a principal of calls.
type SeenPrincipal struct {
	Subject string    `json:"subject"`
	Person  string    `json:"person,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	Roles   []string  `json:"roles"` // at the last call
	Calls   int       `json:"calls"`
	Last    time.Time `json:"last"`
}

// A SignIn is somebody who signed in or out, or whose credential or sign-in was refused.
type SignIn struct {
	At         time.Time `json:"at"`
	Event      string    `json:"event"`             // sign_in, sign_in_refused, sign_out or credential_refused
	Subject    string    `json:"subject,omitempty"` // "" = nobody knows who
	Source     string    `json:"source,omitempty"`  // IP address
	Credential string    `json:"credential,omitempty"`
	Reason     string    `json:"reason,omitempty"`
	Count      int       `json:"count,omitempty"` // that the record stands for, 0 = one
}

// seenFor returns who came lately, for those who read the whole trail. Reading is recorded first.
func (a *access) seenFor(r *http.Request, p policy.Principal) (found Seen, err error) {
	if err := page.ReadQuery(r.URL, nil); err != nil {
		return found, err
	}
	act := people.Act{Name: people.ActTrailRead, Principal: p, Query: "principals and sign-ins"}
	if a.TrailRight(r.Context(), p) != policy.TrailAll {
		return found, a.RecordRefusal(r, act, people.NotAuditor)
	}
	if err := a.Record(r, act); err != nil {
		return found, err
	}
	callers := map[string]*SeenPrincipal{}
	found.SignIns = []SignIn{}
	for line, err := range a.tail(r.Context(), seenRecords, false) {
		if err != nil {
			return found, err
		}
		var record struct {
			Kind      audit.Kind
			Time      time.Time
			Principal audit.Principal
			Event     *audit.Event
		}
		if json.Unmarshal(line, &record) != nil {
			continue // verification finds it
		}
		if found.Since.IsZero() {
			found.Since = record.Time
		}
		switch e := record.Event; {
		case record.Kind == audit.KindOutcome:
			sawCaller(callers, record.Principal, record.Time)
		case e != nil && slices.Contains([]string{audit.EventSignIn, audit.EventSignInRefused, audit.EventSignOut, audit.EventCredentialRefused}, e.Name):
			found.SignIns = append(found.SignIns, SignIn{At: record.Time, Event: e.Name, Subject: page.Visible(record.Principal.Subject), Source: e.Source, Credential: e.Credential, Reason: page.Visible(e.Reason), Count: e.Count})
		}
	}
	slices.Reverse(found.SignIns)
	found.SignIns = found.SignIns[:min(len(found.SignIns), listedSeen)]
	found.Principals = latestCallers(callers)
	return found, nil
}

// sawCaller counts a call of a principal.
func sawCaller(callers map[string]*SeenPrincipal, p audit.Principal, at time.Time) {
	key := strings.Join([]string{p.Tenant, p.Subject, p.Person}, "\x00")
	s := callers[key]
	if s == nil {
		s = &SeenPrincipal{Subject: page.Visible(p.Subject), Person: page.Visible(p.Person), Tenant: page.Visible(p.Tenant)}
		callers[key] = s
	}
	s.Calls++
	s.Last, s.Roles = at, page.VisibleAll(p.Roles)
}

func latestCallers(callers map[string]*SeenPrincipal) []SeenPrincipal {
	all := make([]SeenPrincipal, 0, len(callers))
	for _, s := range callers {
		all = append(all, *s)
	}
	slices.SortFunc(all, func(a, b SeenPrincipal) int {
		return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Tenant+"\x00"+a.Subject+"\x00"+a.Person, b.Tenant+"\x00"+b.Subject+"\x00"+b.Person))
	})
	return all[:min(len(all), listedSeen)]
}

type seenPageData struct {
	page.Shell
	Seen
}

// seenPage shows who came lately.
func (a *access) seenPage(r *http.Request, v people.Visitor) (view templ.Component, err error) {
	var d seenPageData
	if d.Seen, err = a.seenFor(r, v.Principal); err != nil {
		return nil, err
	}
	d.Shell, err = a.Shell(r.Context(), v, "Who came", accessPath, "")
	return seenView(d), err
}
