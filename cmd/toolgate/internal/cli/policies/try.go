package policies

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/policy/workbench"
)

// tried is a trial as it is printed.
type tried struct{ *console.PolicyTrial }

// Untested reports whether some test of the policy did not pass.
func (t tried) Untested() bool {
	return t.Tests != nil && t.Tests.Count(workbench.Failed)+t.Tests.Count(workbench.Errored) > 0
}

// TrialText writes a trial as markdown.
func TrialText(t console.PolicyTrial) string { return report.Of(tried{&t}, triedText).Text("markdown") }

// policyTry tries a policy at a running toolgate.
func policyTry(e *command.Env) *cobra.Command {
	since := "24h"
	c := command.WithForms(e.Printing("try DIR", "try a policy on what a running toolgate has recorded", func(ctx context.Context, args []string) (*report.Report, error) {
		files := map[string]string{}
		err := fs.WalkDir(os.DirFS(args[0]), ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			text, err := os.ReadFile(args[0] + "/" + name)
			files[name] = string(text)
			return err
		})
		if err != nil {
			return nil, command.Usage(fmt.Errorf("reading the policy: %w\nhint: name the directory of a policy", err))
		}
		t := tried{new(console.PolicyTrial)}
		if err := e.RunJob(ctx, "/v1/policy/try", "?since="+url.QueryEscape(since), map[string]any{"files": files}, t.PolicyTrial); err != nil {
			return nil, err
		}
		if t.Revision == "" {
			return report.Of(t, triedText), &command.Exit{Code: command.ExitUsage, Reported: true, Err: errors.New("the policy cannot serve")}
		}
		return report.Of(t, triedText), command.ExitIf(t.Untested() || t.Replay.Differs(), command.ExitDiffer)
	}), "markdown")
	c.Flags().StringVar(&since, "since", since, "`TIME` from which on calls are judged again: RFC 3339, or how long ago")
	return command.AtAdmin(e, c)
}
