// Command toolgate is an MCP tool-host proxy with governance: it stands between
// agents and MCP servers and takes every tool call down one road.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/toolgate/toolgate/internal/sandbox"
)

// gcPercent trades memory for time: the live heap of toolgate is some MiB, so
// that the default of Go collects it hundreds of times a second under load. The
// variable GOGC takes precedence.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
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
