package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy/stop"
)

// stopList is the answer of /v1/stop.
type stopList struct{ Stops []console.StopState }

func stopCommand(e *command.Env) *cobra.Command {
	var reason string
	var within time.Duration
	c := command.New("stop [principal|role|tool|server|all [NAME]]", "stop calls at once, or list what is stopped", func(ctx context.Context, args []string) error {
		if len(args) == 0 {
			list, err := command.Admin(ctx, e, "/v1/stop", new(stopList), stopsText)
			if err != nil {
				return err
			}
			return e.Print(list)
		}
		order := map[string]string{"kind": args[0], "reason": reason}
		if len(args) > 1 {
			order["name"] = args[1]
		}
		if within != 0 {
			order["for"] = within.String()
		}
		var state console.StopState
		if err := e.Fetch(ctx, command.PeopleListener, http.MethodPost, "/v1/stop", order, &state); err != nil {
			return err
		}
		if err := e.Print(report.Of(&state, stoppedText)); err != nil || len(state.Waiting) == 0 {
			return err
		}
		return &command.Exit{Code: command.ExitUnreachable, Reported: true, Err: fmt.Errorf("%d of %d processes did not confirm within 2 s that they enforce the stop%send those, or cut them off",
			len(state.Waiting), len(state.Waiting)+len(state.Confirmed), command.HintMark)}
	})
	c.Flags().StringVar(&reason, "reason", "", "why, as `TEXT` for agents and the audit trail; required")
	c.Flags().DurationVar(&within, "for", 0, "stop for this `DURATION`, such as 1h (default: until somebody resumes)")
	return command.AtAdmin(e, c)
}

func resumeCommand(e *command.Env) *cobra.Command {
	return command.AtAdmin(e, e.Printing("resume STOP", "end a stop", func(ctx context.Context, args []string) (*report.Report, error) {
		var ended stop.Stop
		err := e.Fetch(ctx, command.PeopleListener, http.MethodDelete, "/v1/stop/"+url.PathEscape(args[0]), nil, &ended)
		return report.Of(&ended, resumedText), err
	}))
}

// stopValues are the stops that the running toolgate has in force.
func stopValues(ctx context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
	var list stopList
	if e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/stop", nil, &list) != nil {
		return nil
	}
	return command.TextsOf(list.Stops, func(s console.StopState) string { return described(s.ID, s.About()) })
}
