package console

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// told is one line of a watch: a change, and its ticket as it stands now.
type told struct {
	Seq    int64  `json:"seq"`
	Change change `json:"change"`
	Ticket ticket `json:"approval"`
}

// watch streams the changes of the tickets that p sees, one a line. Who p is,
// is found out anew for every line.
func (c *Console) watch(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	after, err := watchQuery(r.URL)
	if err != nil {
		return err
	}
	ctx, stop := c.life(r.Context())
	defer stop()
	out := http.NewResponseController(w)
	defer out.SetWriteDeadline(time.Time{}) //nolint:errcheck // not every writer has deadlines
	events := c.opts.Feed.Follow(ctx, after)
	w.Header().Set("Content-Type", "application/jsonl")
	_ = out.Flush() // the reader learns that it is connected
	for e, err := range events {
		if err == nil {
			p, err = c.identify(ctx, r.Header.Values("Authorization"))
		}
		if err != nil {
			c.opts.Log.Warn("ending a watch", "error", err)
			panic(http.ErrAbortHandler) // a cut stream must not look complete
		}
		if !e.Ticket.VisibleTo(p) {
			continue
		}
		line, err := json.Marshal(told{Seq: e.Seq, Change: shown(e.Change), Ticket: view(e.Ticket, p)})
		if err != nil || writeLine(w, out, line) != nil {
			return nil
		}
	}
	return nil
}

func watchQuery(u *url.URL) (after int64, err error) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return 0, badRequest("the query cannot be read", "")
	}
	after = -1
	for name, values := range query {
		switch {
		case name != "after":
			return 0, badRequest("there is no parameter "+strconv.Quote(Visible(name)), "after is known")
		case len(values) > 1:
			return 0, badRequest(`"after" is given twice`, "")
		}
		if after, err = strconv.ParseInt(values[0], 10, 64); err != nil || after < 0 {
			return 0, badRequest("after is the seq of the last line that you have", "")
		}
	}
	return after, nil
}
