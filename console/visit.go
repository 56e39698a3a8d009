package console

import (
	"context"
	"net/http"
	"net/url"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// visitor is somebody who is signed in with a browser, as known now.
type visitor struct {
	policy.Principal
	csrf    string // the hidden field "csrf" of every form
	session *session
}

// A page is a handler for visitors. The context of its request also ends with
// the session. A page that returns an error must not have written anything; the
// error is shown as a page.
type page func(w http.ResponseWriter, r *http.Request, v visitor) error

// visit serves signed-in visitors and sends others to the sign-in page.
func (c *Console) visit(h page) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visitor(w, r)
		switch {
		case err == nil:
			return c.serveInSession(w, r, v, h)
		case store.Away(err), r.Header.Get("HX-Request") != "": // an open page fetches itself again: it stays as it is
			return c.refusePage(w, r, err)
		}
		http.Redirect(w, r, "/console/login?next="+url.QueryEscape(r.URL.RequestURI()), http.StatusSeeOther)
		return nil
	}
}

// submit takes forms of signed-in visitors that carry the session's csrf field.
// ServeHTTP has refused other origins before.
func (c *Console) submit(h page) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v, err := c.visitor(w, r)
		if err != nil {
			return c.refusePage(w, r, err)
		}
		if err := readForm(w, r); err != nil {
			return c.refusePage(w, r, err)
		}
		if !equalSecrets(v.csrf, r.PostForm.Get("csrf")) {
			return c.refusePage(w, r, problem{Status: http.StatusForbidden, Code: "FORM_REFUSED", Detail: "this form is not of your present session; nothing was changed",
				Hint: "open the page again"})
		}
		return c.serveInSession(w, r, v, h)
	}
}

// serveInSession runs h for as long as the session lasts.
func (c *Console) serveInSession(w http.ResponseWriter, r *http.Request, v visitor, h page) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(v.session.ctx, cancel)()
	if err := h(w, r.WithContext(ctx), v); err != nil {
		return c.refusePage(w, r, err)
	}
	return nil
}

// signedOut is the refusal of a visitor without a session.
var signedOut = problem{Status: http.StatusUnauthorized, Code: "SIGNED_OUT", Detail: "you are no longer signed in; nothing was changed"}

// visitor identifies the sender of r. The error is signedOut, or that of a store which is
// away. The session of a visitor who can no longer be identified ends.
func (c *Console) visitor(w http.ResponseWriter, r *http.Request) (visitor, error) {
	id := cookie(r, sessionCookie)
	k := c.sessions.find(id)
	if k == nil {
		return visitor{}, signedOut
	}
	v, err := c.identifyAgain(r.Context(), visitor{csrf: k.csrf, session: k})
	if err != nil && !store.Away(err) {
		c.sessions.drop(id)
		setCookie(w, sessionCookie, "")
	}
	return v, err
}

// identifyAgain identifies v again during a long request; for errors see visitor. It does
// not count as use of the session.
func (c *Console) identifyAgain(ctx context.Context, v visitor) (visitor, error) {
	p, err := v.session.again(ctx, v.session.principal)
	switch {
	case store.Away(err):
		return visitor{}, err
	case err != nil || !p.Valid() || v.session.ctx.Err() != nil:
		c.opts.Log.Debug("ending a session", "subject", v.session.principal.Subject, "error", err)
		return visitor{}, signedOut
	}
	v.Principal = p
	return v, nil
}
