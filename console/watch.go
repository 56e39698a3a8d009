package console

import (
	"encoding/json"
	"math"
	"net/http"

	"github.com/toolgate/toolgate/policy"
)

// A TicketEvent is one line of /v1/approvals/watch: a change and the current state
// of its ticket.
type TicketEvent struct {
	Seq    int64  `json:"seq"`
	Change Change `json:"change"`
	Ticket Ticket `json:"approval"`
}

// watch streams the changes of the tickets that p sees, one per line. It
// identifies p again for every line.
func (c *Console) watch(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	after := int64(-1)
	if err := readQuery(r.URL, map[string]func(string) error{
		"after": number(&after, 0, math.MaxInt64, "after is the seq of the last line that you have"),
	}); err != nil {
		return err
	}
	ctx, stop := c.life(r.Context())
	defer stop()
	events := c.opts.Feed.Follow(ctx, after) // from here on nothing is missed
	c.stream(w, func(yield func([]byte, error) bool) {
		for e, err := range events {
			if err == nil {
				p, err = c.identify(ctx, r.Header.Values("Authorization"))
			}
			var line []byte
			if err == nil && e.Ticket.VisibleTo(p) {
				line, err = json.Marshal(TicketEvent{Seq: e.Seq, Change: shown(e.Change), Ticket: view(e.Ticket, p)})
			}
			if (line != nil || err != nil) && !yield(line, err) {
				return
			}
		}
	}, true)
	return nil
}
