package console

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

// visitor is somebody who is signed in with a browser, as known now.
type visitor struct {
	policy.Principal
	csrf    string // the hidden field "csrf" of every form
	session session
	alone   bool // nobody has to sign in
}

// A visitorHandler is a handler for visitors. One that returns an error must not have
// written anything; the error is shown as a page.
type visitorHandler func(w http.ResponseWriter, r *http.Request, v visitor) error

// shows returns a handler that shows the view that h returns.
func shows(h func(r *http.Request, v visitor) (templ.Component, error)) visitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v visitor) error {
		view, err := h(r, v)
		if err != nil {
			return err
		}
		return page.Render(w, page.ScriptCSP, http.StatusOK, view)
	}
}

// leads returns a handler that sends visitors to the path that h returns.
func leads(h func(r *http.Request, v visitor) (string, error)) visitorHandler {
	return func(w http.ResponseWriter, r *http.Request, v visitor) error {
		to, err := h(r, v)
		if err == nil {
			http.Redirect(w, r, to, http.StatusSeeOther)
		}
		return err
	}
}

// An identifier identifies the sender of r. The error is signedOut, or that of a store or of keys
// that cannot be read.
type identifier func(w http.ResponseWriter, r *http.Request) (visitor, error)

// visit serves signed-in visitors and sends others to the sign-in page.
func (vs *visitors) visit(h visitorHandler) page.Handler { return vs.visitAs(vs.visitor, h) }

// visitAs is visit for those whom identify knows.
func (vs *visitors) visitAs(identify identifier, h visitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if errors.Is(err, signedOut) && r.Header.Get("HX-Request") == "" { // an open page that fetches itself again stays as it is
			http.Redirect(w, r, "/console/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
			return nil
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return vs.refusePage(w, r, v, err)
		}
		return nil
	}
}

// submit takes forms of signed-in visitors that carry the session's csrf field.
// ServeHTTP has refused other origins before.
func (vs *visitors) submit(h visitorHandler) page.Handler {
	return vs.submitAs(vs.visitor, page.ReadForm, h)
}

// submitFiles is submit for forms with files, or with long texts.
func (vs *visitors) submitFiles(h visitorHandler) page.Handler {
	return vs.submitAs(vs.visitor, readFiles, h)
}

// submitAs is submit for those whom identify knows, and for forms that read reads.
func (vs *visitors) submitAs(identify identifier, read func(http.ResponseWriter, *http.Request) error, h visitorHandler) page.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := identify(w, r)
		if err == nil {
			err = read(w, r)
		}
		if err == nil && !equalSecrets(v.csrf, r.PostForm.Get("csrf")) {
			err = page.Problem{Status: http.StatusForbidden, Code: "FORM_REFUSED", Detail: "this form is not of your present session; nothing was changed",
				Hint: "open the page again"}
		}
		if err == nil {
			err = h(w, r, v)
		}
		if err != nil {
			return vs.refusePage(w, r, v, err)
		}
		return nil
	}
}

// signedOut is the refusal of a visitor without a session.
var signedOut = page.Problem{Status: http.StatusUnauthorized, Code: "SIGNED_OUT", Detail: "you are no longer signed in; nothing was changed"}

// visitor is the identifier of those who have signed in.
func (vs *visitors) visitor(w http.ResponseWriter, r *http.Request) (visitor, error) {
	value := cookie(r, sessionCookie)
	if value == "" {
		return visitor{}, signedOut
	}
	v, err := vs.identifyAgain(r.Context(), visitor{csrf: formSecret(value), session: session{id: hashOf(value)}})
	if err == nil {
		err = vs.sessions.use(r.Context(), v.session)
	}
	if errors.Is(err, signedOut) {
		setCookie(w, sessionCookie, "")
	}
	return v, err
}

// anybody is visitor and, where no caller needs a credential, it knows a browser without a session
// as Options.Anonymous. Such a browser shows that a form is its own by the cookie of the sign-in page.
func (vs *visitors) anybody(w http.ResponseWriter, r *http.Request) (visitor, error) {
	v, err := vs.visitor(w, r)
	if !errors.Is(err, signedOut) || vs.anonymous == nil || !vs.private(r) {
		return v, err
	}
	p, unknown := vs.anonymous(r.Context())
	if unknown != nil || !p.Valid() {
		return v, err
	}
	return visitor{Principal: p, csrf: entrySecret(w, r), alone: true}, nil
}

// identifyAgain identifies v again during a long request; for errors see visitor. The session of
// a visitor who can no longer be identified ends. It does not count as use of the session.
func (vs *visitors) identifyAgain(ctx context.Context, v visitor) (visitor, error) {
	k, err := vs.sessions.read(ctx, v.session.id)
	if err != nil {
		return visitor{}, err
	}
	p, err := policy.Principal{}, errors.New("there is no identity provider now")
	switch {
	case k.credential != "":
		p, err = vs.again(ctx, k.principal, k.credential)
	case vs.provider != nil:
		p, err = vs.provider.Again(ctx, k.principal)
	}
	switch {
	case store.Away(err):
		return visitor{}, err
	case err != nil || !p.Valid():
		vs.log.Debug("ending a session", "subject", k.principal.Subject, "error", err)
		if err := vs.sessions.drop(ctx, k.id); err != nil {
			return visitor{}, err
		}
		return visitor{}, signedOut
	}
	v.Principal, v.session = p, k
	return v, nil
}
