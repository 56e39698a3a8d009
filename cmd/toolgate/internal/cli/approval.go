package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/console"
)

func approvalCommand(e *env) *cobra.Command {
	c := group("approval", "see and decide the calls that wait for a person", approvalList(e), approvalShow(e), approvalVote(e, "approve"), approvalVote(e, "deny"), approvalReconcile(e), approvalWatch(e))
	c.PersistentFlags().StringVar(&e.addr, "addr", "", "`URL` of the admin listener (default: as configured)")
	return c
}

func approvalList(e *env) *cobra.Command {
	var states []string
	var before string
	var mine bool
	var limit int
	c := command("list", "list held calls, newest first", func(ctx context.Context, _ []string) error {
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		for name, value := range map[string]string{"state": strings.Join(states, ","), "before": before} {
			if value != "" {
				query.Set(name, value)
			}
		}
		if mine {
			query.Set("awaiting", "me")
		}
		var found struct {
			Approvals []console.Ticket
			Next      string
		}
		err := e.printAdmin(ctx, "/v1/approvals?"+query.Encode(), "tickets", &found)
		if found.Next != "" {
			fmt.Fprintf(e.err, "hint: there may be older ones: --before %s\n", found.Next)
		}
		return err
	})
	c.Flags().StringSliceVar(&states, "state", nil, "only tickets in this `STATE`; may be repeated (default: all)")
	c.Flags().BoolVar(&mine, "mine", false, "only what waits for your vote")
	c.Flags().StringVar(&before, "before", "", "only those older than this `TICKET`")
	c.Flags().IntVar(&limit, "limit", 100, "at most this `COUNT` of tickets, up to 1000")
	return c
}

func approvalShow(e *env) *cobra.Command {
	return command("show TICKET", "show one held call whole", func(ctx context.Context, args []string) error {
		return e.printAdmin(ctx, ticketPath(args[0]), "ticket", new(console.Ticket))
	})
}

func ticketPath(id string) string { return "/v1/approvals/" + url.PathEscape(id) }

// approvalVote decides on the digest that the ticket shows at this moment, so
// that a vote never counts for other arguments than those just read.
func approvalVote(e *env, verb string) *cobra.Command {
	var reason, digest string
	c := command(verb+" TICKET", verb+" one held call", func(ctx context.Context, args []string) error {
		if digest == "" {
			var t console.Ticket
			if err := e.fetch(ctx, peopleListener, http.MethodGet, ticketPath(args[0]), nil, &t); err != nil {
				return err
			}
			digest = t.Digest
		}
		return e.postDecision(ctx, ticketPath(args[0])+"/"+verb, map[string]string{"reason": reason, "digest": digest})
	})
	c.Flags().StringVar(&reason, "reason", "", "why, as `TEXT` for the agent and the audit trail; required to deny")
	c.Flags().StringVar(&digest, "digest", "", "`DIGEST` that was shown to you (default: the ticket's at this moment)")
	return c
}

// postDecision sends a person's decision on a ticket, and prints the ticket's state.
func (e *env) postDecision(ctx context.Context, path string, decision map[string]string) error {
	var t console.Ticket
	if err := e.fetch(ctx, peopleListener, http.MethodPost, path, decision, &t); err != nil {
		return err
	}
	return e.Print("decided", t)
}

// approvalReconcile records the outcome that somebody found out at the other end.
func approvalReconcile(e *env) *cobra.Command {
	var outcome, reason string
	c := command("reconcile TICKET", "say what became of a call whose outcome is unknown", func(ctx context.Context, args []string) error {
		return e.postDecision(ctx, ticketPath(args[0])+"/reconcile", map[string]string{"outcome": outcome, "reason": reason})
	})
	c.Flags().StringVar(&outcome, "outcome", "", "what became of the call: `done|failed`; done: it took effect, failed: it did not")
	c.Flags().StringVar(&reason, "reason", "", "how you know, as `TEXT` for the audit trail; required")
	return c
}

func approvalWatch(e *env) *cobra.Command {
	after := int64(-1)
	c := command("watch", "print every change of the tickets that you see, as it happens", func(ctx context.Context, _ []string) error {
		path := "/v1/approvals/watch"
		if after >= 0 {
			path += "?after=" + strconv.FormatInt(after, 10)
		}
		return e.watch(ctx, path)
	})
	c.Flags().Int64Var(&after, "after", after, "`NUMBER` of the last change that you know; 0 = from the first (default: from now on)")
	return c
}

func (e *env) watch(ctx context.Context, path string) error {
	res, err := e.request(ctx, peopleListener, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	last := int64(-1)
	err = eachLine(ctx, res.Body, func(line []byte) error {
		var c console.TicketEvent
		if err := json.Unmarshal(line, &c); err != nil {
			return fmt.Errorf("reading the answer: %w", err)
		}
		last = c.Seq
		if e.Structured() {
			return e.Next("", json.RawMessage(line)) // as it came
		}
		return e.Next("change", c)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		err = errors.New("toolgate ended it")
	}
	hint := "watch again"
	if last >= 0 {
		hint += " with --after " + strconv.FormatInt(last, 10)
	}
	return &exit{code: exitUnreachable, err: fmt.Errorf("watching tickets: %w\nhint: %s", err, hint)}
}
