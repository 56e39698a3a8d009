package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// listed is how many tickets one page of a list has.
	listed = 25
	// mostAwaiting is where the badge stops counting.
	mostAwaiting = 99
)

// face is what people see of a ticket first.
type face struct {
	Said           []phrase
	Standing, Left string
	Look           string // the class of Standing in style.css
	Open, Own      bool   // Open: its expiry still matters
	Expires        time.Time
	Seconds        int // to the expiry
}

func (c *Console) face(k approval.Ticket, v visitor) face {
	now := c.opts.Now()
	look := string(k.State)
	if k.ToolFailed() {
		look = string(approval.StateFailed)
	}
	return face{
		Look: look,
		Said: sentence(k), Standing: describeState(k), Expires: k.Expires, Left: timeLeft(now, k.Expires), Seconds: int(k.Expires.Sub(now) / time.Second),
		Open: k.State == approval.StateProposed || k.State == approval.StateApproved || k.State == approval.StateNeedsConnection,
		Own:  k.Principal.Tenant == v.Tenant && v.SameParty(k.Principal),
	}
}

// item is a ticket in a list.
type item struct {
	face
	ID      string
	Created time.Time
}

// inboxPage is one list of tickets.
type inboxPage struct {
	shell
	View           string // of lists
	Items, Unclear []item
	Older          string
}

// inbox lists tickets: ?view=mine, those that wait for the visitor, and those
// of unknown outcome that it may settle; team, all that are under way and that
// it may see; history, the others that it may see. ?before= pages.
func (c *Console) inbox(w http.ResponseWriter, r *http.Request, v visitor) error {
	view, f, path, err := inboxQuery(r.URL, v)
	if err != nil {
		return err
	}
	data := inboxPage{View: view}
	if data.shell, err = c.shell(r.Context(), v, "Approvals", approvalsPath, path); err != nil {
		return err
	}
	found, err := c.opts.Approvals.List(r.Context(), f)
	if err != nil {
		return err
	}
	if len(found) == listed {
		data.Older = inboxPath(view, found[len(found)-1].ID)
	}
	data.Items = c.items(found, v)
	if view == "mine" && f.Before == "" {
		if data.Unclear, err = c.unclear(r.Context(), v); err != nil {
			return err
		}
	}
	return render(w, appCSP, http.StatusOK, inboxView(data))
}

func (c *Console) items(found []approval.Ticket, v visitor) (items []item) {
	for _, k := range found {
		if k.VisibleTo(v.Principal) {
			items = append(items, item{face: c.face(k, v), ID: k.ID, Created: k.Created})
		}
	}
	return items
}

// unclear returns the tickets of unknown outcome that v may reconcile.
func (c *Console) unclear(ctx context.Context, v visitor) ([]item, error) {
	found, err := c.opts.Approvals.List(ctx, approval.Filter{States: []approval.State{approval.StateUnknown}, Viewer: v.Principal, Limit: listed})
	var mine []approval.Ticket
	for _, k := range found {
		if k.MayDecide(v.Principal) {
			mine = append(mine, k)
		}
	}
	return c.items(mine, v), err
}

// inboxQuery reads what a list is asked for.
func inboxQuery(u *url.URL, v visitor) (view string, f approval.Filter, path string, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", f, "", badRequest("the query cannot be read", "")
	}
	f = approval.Filter{Before: query.Get("before"), Limit: listed}
	switch view = cmp.Or(query.Get("view"), "mine"); view {
	case "mine":
		f.Awaiting = v.Principal
	case "team":
		f.Viewer, f.States = v.Principal, []approval.State{approval.StateProposed, approval.StateApproved, approval.StateNeedsConnection, approval.StateDispatching}
	case "history":
		f.Viewer, f.States = v.Principal, []approval.State{approval.StateDenied, approval.StateExpired, approval.StateSuperseded,
			approval.StateDone, approval.StateFailed, approval.StateUnknown}
	default:
		return "", f, "", badRequest("there is no such list", "mine, team and history are known")
	}
	return view, f, inboxPath(view, f.Before), nil
}

func inboxPath(view, before string) string {
	query := url.Values{}
	if view != "mine" {
		query.Set("view", view)
	}
	if before != "" {
		query.Set("before", before)
	}
	return (&url.URL{Path: approvalsPath, RawQuery: query.Encode()}).String()
}

// ticketPath returns the path of the page of a ticket.
func ticketPath(id string) string { return approvalsPath + "/" + url.PathEscape(id) }
