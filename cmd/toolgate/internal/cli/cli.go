// Package cli is the command line of toolgate: its flags, commands, output and exit codes.
//
// Main runs one command line. Each command reads the configuration with load, does its work with
// the packages of the gate or asks a running toolgate over HTTP, and prints one result in the form
// that -o names. An error carries its exit code; exit.go has the list. Standard output carries
// protocol or results only, and all else goes to standard error.
package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	_ "github.com/toolgate/toolgate/cmd/toolgate/internal/cli/garbage" // sets how often it is collected
	"github.com/toolgate/toolgate/internal/sandbox"
)

// version is what the command version prints.
var version = "0.1.0-dev"

// Main runs the command line of the process as a toolgate of a version, and exits with its code.
func Main(built string) {
	version = built
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
