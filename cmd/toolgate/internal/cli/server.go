package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/registry/upstream"
)

func serverCommand(e *command.Env) *cobra.Command {
	list := e.Printing("list", "list the servers with their state", func(ctx context.Context, _ []string) (*report.Report, error) {
		found, err := servers(ctx, e)
		return report.Of(found, serversText), err
	})
	show := e.Printing("show SERVER", "show one server", func(ctx context.Context, args []string) (*report.Report, error) {
		found, err := servers(ctx, e)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(found, func(s console.Upstream) bool { return s.Name == args[0] })
		if i < 0 {
			return nil, command.Unknown("server", args[0], namesOf(found))
		}
		shown := console.Server{Upstream: found[i]}
		if e.Token != "" { // those who operate servers see more; for others the status is all
			_ = e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/servers/"+url.PathEscape(args[0]), nil, &shown)
		}
		return report.Of(shown, serverText), nil
	})
	restart := e.Printing("restart SERVER", "end the connections of a server and start it again", func(ctx context.Context, args []string) (*report.Report, error) {
		var after console.Server
		err := e.Fetch(ctx, command.PeopleListener, http.MethodPost, "/v1/servers/"+url.PathEscape(args[0])+"/restart", nil, &after)
		if refused := (*command.Exit)(nil); errors.As(err, &refused) && refused.Word == "NO_SERVER" {
			found, _ := servers(ctx, e) // a failure leaves the message without a suggestion
			return nil, refused.WithHint(cmp.Or(command.DidYouMean(args[0], namesOf(found)), command.HintMark+"toolgate server list"))
		}
		if err != nil {
			return nil, err
		}
		return report.Of(after, serverText), command.ExitIf(after.State != string(upstream.StateReady), command.ExitUnreachable)
	})
	return command.AtAdmin(e, command.Group("server", "see the servers and their state, restart one", list, show, restart))
}

func namesOf(servers []console.Upstream) []string {
	return command.TextsOf(servers, func(s console.Upstream) string { return s.Name })
}

// servers returns the servers of the running toolgate. Where none answers at the
// configured address, it returns those of the configuration, none of which runs, and
// stderr says so.
func servers(ctx context.Context, e *command.Env) ([]console.Upstream, error) {
	var s console.Status
	err := e.ReadStatus(ctx, &s)
	if err == nil || e.Addr != "" || !errors.Is(err, command.ErrNoToolgate) {
		return s.Upstreams, err
	}
	fmt.Fprintf(e.Stderr, "%v\n", err)
	cfg, err := e.Load()
	if err != nil {
		return nil, err
	}
	found := []console.Upstream{}
	for _, s := range cfg.Servers {
		state := "not running"
		if s.Disabled {
			state = "disabled"
		}
		found = append(found, console.Upstream{Name: s.Name, State: state, Transport: s.Type})
	}
	return found, nil
}
