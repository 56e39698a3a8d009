package console

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/policy"
)

const (
	tailLines = 10    // when the query does not say
	maxLines  = 10000 // in one request
	// stalled is how long a reader may take no line before it is dropped.
	stalled = 30 * time.Second
)

// audit streams the trail to auditors and approvers, one record per line.
func (c *Console) audit(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	if !p.Has("auditor", "approver") {
		return problem{Status: http.StatusForbidden, Code: "NOT_AUDITOR", Detail: "the audit trail is for the roles auditor and approver"}
	}
	if c.opts.Audit == nil {
		return problem{Status: http.StatusNotFound, Code: "NOT_FOUND", Detail: "there is no audit trail here"}
	}
	n, follow := tailLines, false
	if err := readQuery(r.URL, map[string]func(string) error{
		"n": number(&n, 0, maxLines, fmt.Sprintf("n is a number from 0 to %d", maxLines)),
		"follow": func(value string) (err error) {
			if follow, err = strconv.ParseBool(value); err != nil {
				err = badRequest("follow is 1 or 0", "")
			}
			return err
		},
	}); err != nil {
		return err
	}
	ctx, stop := c.life(r.Context())
	defer stop()
	c.stream(w, c.opts.Audit(ctx, n, follow), follow)
	return nil
}

// stream writes lines as they come. With follow, the reader learns at once that it
// is connected.
func (c *Console) stream(w http.ResponseWriter, lines iter.Seq2[[]byte, error], follow bool) {
	out := http.NewResponseController(w)
	defer out.SetWriteDeadline(time.Time{}) //nolint:errcheck // not every writer has deadlines
	w.Header().Set("Content-Type", "application/jsonl")
	if follow {
		_ = out.Flush()
	}
	for line, err := range lines {
		if err != nil {
			c.opts.Log.Warn("ending a stream", "error", err)
			panic(http.ErrAbortHandler) // a cut stream must not look complete
		}
		if writeLine(w, out, line) != nil {
			return
		}
	}
}

// writeLine writes and flushes one line. It fails for a reader that takes
// nothing for the time stalled.
func writeLine(w http.ResponseWriter, out *http.ResponseController, line []byte) error {
	if err := out.SetWriteDeadline(time.Now().Add(stalled)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return out.Flush()
}

// life returns the request's context, which Close ends too.
func (c *Console) life(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(c.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}
