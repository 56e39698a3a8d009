package cli

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/wait"
)

// connectionWait is how long login --wait waits.
const connectionWait = 10 * time.Minute

// connectionList is the answer of /v1/connections.
type connectionList struct{ Connections []console.Connection }

func connectionCommand(e *command.Env) *cobra.Command {
	show := e.Printing("show CONNECTION", "show one connection", func(ctx context.Context, args []string) (*report.Report, error) {
		return command.Admin(ctx, e, connectionPath(args[0]), new(console.Connection), connectionText)
	})
	revoke := e.Printing("revoke CONNECTION", "end a connection, here and at the authorization server", func(ctx context.Context, args []string) (*report.Report, error) {
		var ended console.Connection
		err := e.Fetch(ctx, command.PeopleListener, http.MethodDelete, connectionPath(args[0]), nil, &ended)
		return report.Of(ended, connectionRevokedText), err
	})
	return command.AtAdmin(e, command.Group("connection", "connect accounts at servers, see and revoke them", connectionListCommand(e), show, revoke, connectionLogin(e)))
}

func connectionPath(id string) string { return "/v1/connections/" + url.PathEscape(id) }

func connectionListCommand(e *command.Env) *cobra.Command {
	var all bool
	var subject string
	c := e.Printing("list", "list your connections", func(ctx context.Context, _ []string) (*report.Report, error) {
		query := url.Values{}
		if all {
			query.Set("all", "true")
		}
		if subject != "" {
			query.Set("subject", subject)
		}
		return command.Admin(ctx, e, "/v1/connections?"+query.Encode(), new(connectionList), connectionsText)
	})
	c.Flags().BoolVar(&all, "all", false, "those of everybody, for operators")
	c.Flags().StringVar(&subject, "subject", "", "those of this `SUBJECT`, for operators")
	return c
}

// loginPage is the report of connection login.
type loginPage struct {
	Address    string              `json:"address"`
	Connection *console.Connection `json:"connection,omitempty"` // that was made; nil = nobody waited
}

func connectionLogin(e *command.Env) *cobra.Command {
	var open, waits bool
	c := e.Printing("login SERVER", "print the address of the page where you connect your account", func(ctx context.Context, args []string) (*report.Report, error) {
		address, err := connectionPage(e, args[0])
		if err != nil {
			return nil, err
		}
		if open {
			if err := openBrowser(ctx, address); err != nil {
				fmt.Fprintf(e.Stderr, "toolgate: warning: no browser opens: %v\nhint: open %s\n", err, address)
			}
		}
		page := loginPage{Address: address}
		if waits {
			fmt.Fprintf(e.Stderr, "connect your account at %s\n", address)
			page.Connection, err = awaitConnection(ctx, e, args[0])
		}
		return report.Of(page, connectionPageText), err
	})
	c.Flags().BoolVar(&open, "open", false, "open the page in a browser")
	c.Flags().BoolVar(&waits, "wait", false, "wait up to 10 minutes for the connection, and print it")
	return c
}

// connectionPage returns the address of the page where people connect to a server.
func connectionPage(e *command.Env, server string) (string, error) {
	if e.Addr != "" {
		base, _, err := e.Find(command.PeopleListener)
		return base + app.ConnectionPath(server), err
	}
	cfg, err := e.Load()
	if err != nil {
		return "", err
	}
	if known := app.Connectable(cfg); !slices.Contains(known, server) {
		return "", command.Unknown("server with a credential of type oauth", server, known)
	}
	return app.ConsoleURL(cfg) + app.ConnectionPath(server), nil
}

// awaitConnection returns the caller's connection to a server, or, for an operator, that of toolgate, once
// there is one.
func awaitConnection(ctx context.Context, e *command.Env, server string) (*console.Connection, error) {
	for begun := time.Now(); time.Since(begun) < connectionWait; {
		var found connectionList
		if err := e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/connections", nil, &found); err != nil {
			return nil, err
		}
		for _, k := range found.Connections {
			if k.Server == server && k.Live() {
				return &k, nil
			}
		}
		if !wait.For(ctx, time.Second) {
			return nil, command.ErrInterrupted
		}
	}
	return nil, &command.Exit{Code: command.ExitUnauthorised, Err: fmt.Errorf("no account was connected to server %s within %s\nhint: open the page, and sign in there as whoever --token names", server, connectionWait)}
}

// openBrowser opens a page in the user's browser.
func openBrowser(ctx context.Context, address string) error {
	command := map[string][]string{"darwin": {"open"}, "windows": {"rundll32", "url.dll,FileProtocolHandler"}}[runtime.GOOS]
	if command == nil {
		command = []string{"xdg-open"}
	}
	return exec.CommandContext(ctx, command[0], append(command[1:], address)...).Run()
}

// connectionValues are the connections that the running toolgate shows to the caller.
func connectionValues(ctx context.Context, e *command.Env, _ *cobra.Command, _ []string) []string {
	var list connectionList
	if e.Fetch(ctx, command.PeopleListener, http.MethodGet, "/v1/connections", nil, &list) != nil {
		return nil
	}
	return command.TextsOf(list.Connections, func(k console.Connection) string {
		return described(k.ID, k.State+": "+k.Server+" "+k.Account)
	})
}
