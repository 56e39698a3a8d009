// Command toolgate is an MCP tool-host proxy with governance: it stands between
// agents and MCP servers and takes every tool call down one road.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/toolgate/toolgate/internal/garbage" // sets how often it is collected
	"github.com/toolgate/toolgate/internal/sandbox"
)

func main() {
	if !sandbox.IsGuardian(os.Args[1:]) { // a guardian protects itself when it has an identity
		if err := sandbox.Protect(); err != nil {
			fmt.Fprintln(os.Stderr, "warning: other processes of this user can read the secrets of this one:", err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	code := run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr}, os.LookupEnv)
	stop()
	os.Exit(code)
}
