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

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/records"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console/tickets"
)

func approvalCommand(e *command.Env) *cobra.Command {
	show := e.Printing("show TICKET", "show one held call whole", func(ctx context.Context, args []string) (*report.Report, error) {
		return command.Admin(ctx, e, ticketPath(args[0]), new(tickets.Ticket), ticketText)
	})
	var outcome, reason string
	reconcile := e.Printing("reconcile TICKET", "say what became of a call whose outcome is unknown", func(ctx context.Context, args []string) (*report.Report, error) {
		return decided(ctx, e, ticketPath(args[0])+"/reconcile", map[string]string{"outcome": outcome, "reason": reason})
	})
	reconcile.Flags().StringVar(&outcome, "outcome", "", "what became of the call: `done|failed`; done: it took effect, failed: it did not")
	reconcile.Flags().StringVar(&reason, "reason", "", "how you know, as `TEXT` for the audit trail; required")
	return command.AtAdmin(e, command.Group("approval", "see and decide the calls that wait for a person", approvalList(e), show, approvalVote(e, "approve TICKET", "approve one held call"), approvalVote(e, "deny TICKET...", "deny held calls, all for one reason"), reconcile, approvalWatch(e)))
}

// ticketList is a page of tickets.
type ticketList struct {
	Approvals []tickets.Ticket
	Next      string // ticket before which there may be others
}

func approvalList(e *command.Env) *cobra.Command {
	var states []string
	var before, server, tool, principal, role string
	var mine bool
	var limit int
	c := e.Printing("list", "list held calls, newest first", func(ctx context.Context, _ []string) (*report.Report, error) {
		query := url.Values{"limit": {strconv.Itoa(limit)}}
		for name, value := range map[string]string{"state": strings.Join(states, ","), "before": before, "server": server, "tool": tool, "principal": principal, "role": role} {
			if value != "" {
				query.Set(name, value)
			}
		}
		if mine {
			query.Set("awaiting", "me")
		}
		var found ticketList
		list, err := command.Admin(ctx, e, "/v1/approvals?"+query.Encode(), &found, ticketsText)
		if found.Next != "" {
			fmt.Fprintf(e.Stderr, "hint: there may be older ones: --before %s\n", found.Next)
		}
		return list, err
	})
	c.Flags().StringSliceVar(&states, "state", nil, "only tickets in this `STATE`; may be repeated (default: all)")
	c.Flags().BoolVar(&mine, "mine", false, "only what waits for your vote")
	c.Flags().StringVar(&server, "server", "", "only calls of tools of this `SERVER`")
	c.Flags().StringVar(&tool, "tool", "", "only calls of this `TOOL`, by the name that agents use")
	c.Flags().StringVar(&principal, "principal", "", "only calls of this requester: a `SUBJECT`")
	c.Flags().StringVar(&role, "role", "", "only calls on which this `ROLE` may decide")
	c.Flags().StringVar(&before, "before", "", "only those older than this `TICKET`")
	c.Flags().IntVar(&limit, "limit", 100, "at most this `COUNT` of tickets, up to 1000")
	return c
}

func ticketPath(id string) string { return "/v1/approvals/" + url.PathEscape(id) }

// approvalVote decides on the digest that each ticket shows at this moment, so
// that a vote never counts for other arguments than those just read. A vote that is
// refused keeps none of the others back.
func approvalVote(e *command.Env, use, short string) *cobra.Command {
	var reason, digest string
	verb, _, _ := strings.Cut(use, " ")
	vote := func(ctx context.Context, id string) (*report.Report, error) {
		t := tickets.Ticket{Digest: digest}
		if digest == "" {
			if err := e.Fetch(ctx, command.PeopleListener, http.MethodGet, ticketPath(id), nil, &t); err != nil {
				return nil, err
			}
		}
		return decided(ctx, e, ticketPath(id)+"/"+verb, map[string]string{"reason": reason, "digest": t.Digest})
	}
	c := e.Printing(use, short, func(ctx context.Context, tickets []string) (_ *report.Report, failed error) {
		if len(tickets) == 1 {
			return vote(ctx, tickets[0])
		}
		if digest != "" {
			return nil, command.Usage(errors.New("--digest is that of one ticket\nhint: leave it out, or name one ticket"))
		}
		for _, id := range tickets {
			voted, err := vote(ctx, id)
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s: %w", id, err))
			} else if err := e.Next(voted); err != nil {
				return nil, err
			}
		}
		return nil, failed
	})
	c.Flags().StringVar(&reason, "reason", "", "why, as `TEXT` for the agent and the audit trail; required to deny")
	c.Flags().StringVar(&digest, "digest", "", "`DIGEST` that was shown to you (default: the ticket's at this moment)")
	return c
}

// decided sends a person's decision on a ticket, and returns the ticket after it.
func decided(ctx context.Context, e *command.Env, path string, decision map[string]string) (*report.Report, error) {
	var t tickets.Ticket
	err := e.Fetch(ctx, command.PeopleListener, http.MethodPost, path, decision, &t)
	return report.Of(t, decidedText), err
}

func approvalWatch(e *command.Env) *cobra.Command {
	after := int64(-1)
	c := command.New("watch", "print every change of the tickets that you see, as it happens", func(ctx context.Context, _ []string) error {
		path, hint := "/v1/approvals/watch", "watch again"
		if after >= 0 {
			path += "?after=" + strconv.FormatInt(after, 10)
		}
		res, err := e.Request(ctx, command.PeopleListener, http.MethodGet, path, nil)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		err = records.EachLine(ctx, res.Body, func(line []byte) error {
			var c tickets.TicketEvent
			if err := json.Unmarshal(line, &c); err != nil {
				return fmt.Errorf("reading the answer: %w", err)
			}
			hint = "watch again with --after " + strconv.FormatInt(c.Seq, 10)
			if e.Structured() {
				return e.Next(report.Document(json.RawMessage(line))) // as it came
			}
			return e.Next(report.Of(c, changeText))
		})
		switch {
		case err == nil:
			return nil
		case errors.Is(err, io.EOF):
			err = errors.New("toolgate ended it")
		}
		return &command.Exit{Code: command.ExitUnreachable, Err: fmt.Errorf("watching tickets: %w\nhint: %s", err, hint)}
	})
	c.Flags().Int64Var(&after, "after", after, "`NUMBER` of the last change that you know; 0 = from the first (default: from now on)")
	return c
}
