package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
)

// everyPage returns what every page of a list of the admin listener has under a name.
func everyPage[T any](ctx context.Context, e *command.Env, path, name string, query url.Values) ([]T, error) {
	all, next := []T{}, ""
	query.Set("limit", "1000")
	for {
		var page map[string]json.RawMessage
		if err := e.Fetch(ctx, command.PeopleListener, http.MethodGet, path+"?"+query.Encode(), nil, &page); err != nil {
			return nil, err
		}
		var part []T
		if err := json.Unmarshal(page[name], &part); err != nil {
			return nil, fmt.Errorf("reading the answer: %w", err)
		}
		if all = append(all, part...); page["next"] == nil {
			return all, nil
		}
		if err := json.Unmarshal(page["next"], &next); err != nil {
			return nil, fmt.Errorf("reading the answer: %w", err)
		}
		query.Set("cursor", next)
	}
}

func sessionCommand(e *command.Env) *cobra.Command {
	var subject, server string
	list := e.Printing("list", "list the sessions of MCP clients", func(ctx context.Context, _ []string) (*report.Report, error) {
		found, err := everyPage[console.ClientSession](ctx, e, "/v1/sessions", "sessions", url.Values{"principal": {subject}, "server": {server}})
		return report.Of(found, sessionsText), err
	})
	list.Flags().StringVar(&subject, "subject", "", "only those of this `SUBJECT`")
	list.Flags().StringVar(&server, "server", "", "only those with a connection to this `SERVER`")
	end := e.Printing("end SESSION", "end the session of an MCP client", func(ctx context.Context, args []string) (*report.Report, error) {
		var ended console.ClientSession
		err := e.Fetch(ctx, command.PeopleListener, http.MethodDelete, "/v1/sessions/"+url.PathEscape(args[0]), nil, &ended)
		return report.Of(ended, sessionEndedText), err
	})
	return command.AtAdmin(e, command.Group("session", "see the sessions of MCP clients, end one", list, end))
}

// sessionValues are the sessions of the running toolgate.
func sessionValues(ctx context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
	all, _ := everyPage[console.ClientSession](ctx, e, "/v1/sessions", "sessions", url.Values{}) // a source answers every fault with nothing
	return command.TextsOf(all, func(s console.ClientSession) string { return described(s.ID, s.Principal+" "+s.Client) })
}

func limitsCommand(e *command.Env) *cobra.Command {
	var subject, tool string
	c := e.Printing("limits", "show what is used of rate limits and meters", func(ctx context.Context, _ []string) (*report.Report, error) {
		found, err := everyPage[console.Limit](ctx, e, "/v1/limits", "limits", url.Values{"principal": {subject}, "tool": {tool}})
		return report.Of(found, limitsText), err
	})
	c.Flags().StringVar(&subject, "subject", "", "only those of this `SUBJECT`")
	c.Flags().StringVar(&tool, "tool", "", "only those of this `TOOL`")
	return command.AtAdmin(e, c)
}
