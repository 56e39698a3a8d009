package console

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/toolgate/toolgate/policy"
)

// told is one line of a watch: a change and the current state of its ticket.
type told struct {
	Seq    int64  `json:"seq"`
	Change change `json:"change"`
	Ticket ticket `json:"approval"`
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
