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

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/registry/upstream"
)

func serverCommand(e *env) *cobra.Command {
	c := group("server", "see the servers and their state, restart one", serverList(e), serverShow(e), serverRestart(e))
	c.PersistentFlags().StringVar(&e.addr, "addr", "", "`URL` of the admin listener (default: as configured)")
	return c
}

func serverList(e *env) *cobra.Command {
	return command("list", "list the servers with their state", func(ctx context.Context, _ []string) error {
		found, err := e.servers(ctx)
		if err != nil {
			return err
		}
		return e.Print("servers", found)
	})
}

func serverShow(e *env) *cobra.Command {
	return command("show SERVER", "show one server", func(ctx context.Context, args []string) error {
		found, err := e.servers(ctx)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found, func(s console.Upstream) bool { return s.Name == args[0] })
		if i < 0 {
			return unknown("server", args[0], names(found))
		}
		return e.Print("server", found[i])
	})
}

func serverRestart(e *env) *cobra.Command {
	return command("restart SERVER", "end the connections of a server and start it again", func(ctx context.Context, args []string) error {
		var after console.Upstream
		err := e.fetch(ctx, peopleListener, http.MethodPost, "/v1/servers/"+url.PathEscape(args[0])+"/restart", nil, &after)
		if refused := (*exit)(nil); errors.As(err, &refused) && refused.word == "NO_SERVER" {
			found, _ := e.servers(ctx) // a failure leaves the message without a suggestion
			return refused.withHint(cmp.Or(didYouMean(args[0], names(found)), hintMark+"toolgate server list"))
		}
		if err != nil {
			return err
		}
		return errors.Join(e.Print("server", after), exitIf(after.State != string(upstream.StateReady), exitUnreachable))
	})
}

func names(servers []console.Upstream) (found []string) {
	for _, s := range servers {
		found = append(found, s.Name)
	}
	return found
}

// servers returns the servers of the running toolgate. Where none answers at the
// configured address, it returns those of the configuration, and stderr says so.
func (e *env) servers(ctx context.Context) ([]console.Upstream, error) {
	var s console.Status
	err := e.readStatus(ctx, &s)
	if err == nil || e.addr != "" || !errors.Is(err, errNoToolgate) {
		return s.Upstreams, err
	}
	fmt.Fprintf(e.err, "%v\n", err)
	return e.configuredServers()
}

// configuredServers returns the servers of the configuration, none of which runs.
func (e *env) configuredServers() ([]console.Upstream, error) {
	cfg, err := e.load()
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
