package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/wait"
	"github.com/toolgate/toolgate/policy/workbench"
)

// jobBeat is how often a command asks how far its job has come.
const jobBeat = 300 * time.Millisecond

// runJob begins a job at a path of the admin listener, shows its progress, and decodes its result into
// result. A command that is interrupted cancels its job.
func (e *env) runJob(ctx context.Context, path, query string, in, result any) error {
	var job struct {
		console.Job
		Result json.RawMessage `json:"result"`
	}
	if err := e.fetch(ctx, peopleListener, http.MethodPost, path+query, in, &job); err != nil {
		return err
	}
	at := path + "/" + url.PathEscape(job.ID)
	bar := e.progress(false)
	defer bar.End()
	for job.State == console.JobRunning {
		bar.Update(job.Done, job.All, func() string { return job.Doing })
		err := errInterrupted
		if wait.For(ctx, jobBeat) {
			err = e.fetch(ctx, peopleListener, http.MethodGet, at, nil, &job)
		}
		if err != nil {
			after, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer stop()
			return errors.Join(err, e.fetch(after, peopleListener, http.MethodDelete, at, nil, &job))
		}
	}
	if job.State != console.JobDone {
		return fmt.Errorf("the job at %s has %s: %s", at, job.State, job.Error)
	}
	return json.Unmarshal(job.Result, result)
}

// tried is a trial as it is printed.
type tried struct{ *console.PolicyTrial }

// Untested reports whether some test of the policy did not pass.
func (t tried) Untested() bool {
	return t.Tests != nil && t.Tests.Count(workbench.Failed)+t.Tests.Count(workbench.Errored) > 0
}

// policyTry tries a policy at a running toolgate.
func policyTry(e *env) *cobra.Command {
	since := "24h"
	c := withForms(e.printing("try DIR", "try a policy on what a running toolgate has recorded", func(ctx context.Context, args []string) (*report.Report, error) {
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
			return nil, usage(fmt.Errorf("reading the policy: %w\nhint: name the directory of a policy", err))
		}
		t := tried{new(console.PolicyTrial)}
		if err := e.runJob(ctx, "/v1/policy/try", "?since="+url.QueryEscape(since), map[string]any{"files": files}, t.PolicyTrial); err != nil {
			return nil, err
		}
		if t.Revision == "" {
			return report.Of(t, triedText), &exit{code: exitUsage, reported: true, err: errors.New("the policy cannot serve")}
		}
		return report.Of(t, triedText), exitIf(t.Untested() || t.Replay.Differs(), exitDiffer)
	}), "markdown")
	c.Flags().StringVar(&since, "since", since, "`TIME` from which on calls are judged again: RFC 3339, or how long ago")
	return atAdmin(e, c)
}
