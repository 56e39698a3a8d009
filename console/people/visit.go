package people

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/a-h/templ"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// Visitor is somebody who is signed in with a browser, as known now.
type Visitor struct {
	policy.Principal
	CSRF    string // the hidden field "csrf" of every form
	session session
	Alone   bool // nobody has to sign in
}

// A VisitorHandler is a handler for visitors. One that returns an error must not have
// written anything; the error is shown as a page.
type VisitorHandler func(w http.ResponseWriter, r *http.Request, v Visitor) error

// Shows returns a handler that shows the view that h returns.
func Shows(h func(r *http.Request, v Visitor) (templ.Component, error)) VisitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v Visitor) error {
		view, err := h(r, v)
		if err != nil {
			return err
		}
		return page.Render(w, page.ScriptCSP, http.StatusOK, view)
	}
}

// Leads returns a handler that sends visitors to the path that h returns.
func Leads(h func(r *http.Request, v Visitor) (string, error)) VisitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v Visitor) error {
		to, err := h(r, v)
		if err == nil {
			http.Redirect(w, r, to, http.StatusSeeOther)
		}
		return err
	}
}

// An Identifier identifies the sender of r. The error is SignedOut, or that of a store or of keys
// that cannot be read.
type Identifier func(w http.ResponseWriter, r *http.Request) (Visitor, error)

// Visit serves signed-in visitors and sends others to the sign-in page.
func (g *Guard) Visit(h VisitorHandler) page.Handler { return g.VisitAs(g.Visitor, h) }

// VisitAs is Visit for those whom identify knows.
func (g *Guard) VisitAs(identify Identifier, h VisitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if errors.Is(err, SignedOut) && r.Header.Get("HX-Request") == "" { // an open page that fetches itself again stays as it is
			http.Redirect(w, r, "/console/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return nil
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return g.RefusePage(w, r, v, err)
		}
		return nil
	}
}

// Submit takes forms of signed-in visitors that carry the session's csrf field.
// The console has refused other origins before.
func (g *Guard) Submit(h VisitorHandler) page.Handler {
	return g.SubmitAs(g.Visitor, page.ReadForm, h)
}

// SubmitAs is Submit for those whom identify knows, and for forms that read reads.
func (g *Guard) SubmitAs(identify Identifier, read func(http.ResponseWriter, *http.Request) error, h VisitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if err == nil {
			err = read(w, r)
		}
		if err == nil && !EqualSecrets(v.CSRF, r.PostForm.Get("csrf")) {
			err = page.Problem{Status: http.StatusForbidden, Code: "FORM_REFUSED", Detail: "this form is not of your present session; nothing was changed",
				Hint: "open the page again"}
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return g.RefusePage(w, r, v, err)
		}
		return nil
	}
}

// SignedOut is the refusal of a visitor without a session.
var SignedOut = page.Problem{Status: http.StatusUnauthorized, Code: "SIGNED_OUT", Detail: "you are no longer signed in; nothing was changed"}

// Visitor is the identifier of those who have signed in.
func (g *Guard) Visitor(w http.ResponseWriter, r *http.Request) (Visitor, error) {
	value := Cookie(r, sessionCookie)
	if value == "" {
		return Visitor{}, SignedOut
	}
	v, err := g.IdentifyAgain(r.Context(), Visitor{CSRF: FormSecret(value), session: session{id: hashOf(value)}})
	if err == nil {
		err = g.sessions.use(r.Context(), v.session)
	}
	if errors.Is(err, SignedOut) {
		SetCookie(w, sessionCookie, "")
	}
	return v, err
}

// Anybody is Visitor and, where no caller needs a credential, it knows a browser without a session
// as Options.Anonymous. Such a browser shows that a form is its own by the cookie of the sign-in page.
func (g *Guard) Anybody(w http.ResponseWriter, r *http.Request) (Visitor, error) {
	v, err := g.Visitor(w, r)
	if !errors.Is(err, SignedOut) || g.o.Anonymous == nil || !g.private(r) {
		return v, err
	}
	p, unknown := g.o.Anonymous(r.Context())
	if unknown != nil || !p.Valid() {
		return v, err
	}
	return Visitor{Principal: p, CSRF: entrySecret(w, r), Alone: true}, nil
}

// IdentifyAgain identifies v again during a long request; for errors see Visitor. The session of
// a visitor who can no longer be identified ends. It does not count as use of the session.
func (g *Guard) IdentifyAgain(ctx context.Context, v Visitor) (Visitor, error) {
	k, err := g.sessions.read(ctx, v.session.id)
	if err != nil {
		return Visitor{}, err
	}
	p, err := policy.Principal{}, errors.New("there is no identity provider now")
	switch {
	case k.credential != "":
		p, err = g.o.Again(ctx, k.principal, k.credential)
	case g.o.Provider != nil:
		p, err = g.o.Provider.Again(ctx, k.principal)
	}
	switch {
	case store.Away(err):
		return Visitor{}, err
	case err != nil || !p.Valid():
		g.Log.Debug("ending a session", "subject", k.principal.Subject, "error", err)
		if err := g.sessions.drop(ctx, k.id); err != nil {
			return Visitor{}, err
		}
		return Visitor{}, SignedOut
	}
	v.Principal, v.session = p, k
	return v, nil
}
