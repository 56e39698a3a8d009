package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/report"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/dialect"
)

// firstCall is what the agent of a new configuration got.
type firstCall struct {
	Tool  string   `json:"tool,omitempty"`  // that it called; "" = it listed the tools
	Text  string   `json:"text,omitempty"`  // the beginning of the result
	Tools []string `json:"tools,omitempty"` // names in the list
}

// tryOut checks what was written, as check does, and makes a first call through it.
func (e *env) tryOut(ctx context.Context, s *setup) error {
	files, err := e.checkFiles(ctx)
	if err != nil {
		return err
	}
	s.Findings = files.found
	return e.serveOnce(ctx, files.cfg, func(a *app.App, base string) error {
		for _, f := range findings(a) {
			if !slices.Contains(s.Findings, f) && !strings.HasPrefix(f.Where, "role ") { // a role without tools is drafted so
				s.Findings = append(s.Findings, f)
			}
		}
		s.Call, err = e.callFirst(ctx, s, base)
		return err
	})
}

// serveOnce serves a configuration on free ports while use runs, and calls use when every
// upstream has answered, failed or had its time.
func (e *env) serveOnce(ctx context.Context, cfg *config.Config, use func(a *app.App, base string) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	aside := *cfg
	aside.Listen, aside.Admin = "127.0.0.1:0", "127.0.0.1:0"
	listeners, err := app.Listen(&aside)
	if err != nil {
		return err
	}
	defer listeners.Close()
	a, err := app.Open(ctx, listeners.Bound(&aside), e.appOptions())
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listeners, app.Reload{}) }()
	started, enough := context.WithTimeout(ctx, startBound)
	a.WaitForUpstreams(started)
	enough()
	err = use(a, app.URL(a.Config().Listen, nil))
	stop()
	return errors.Join(err, <-ended, a.Close())
}

// mostTried is how many tools init calls until one answers.
const mostTried = 3

// callFirst calls a tool that only reads and needs no arguments as the new agent. Without
// one that answers, it lists the tools.
func (e *env) callFirst(ctx context.Context, s *setup, base string) (*firstCall, error) {
	as := *e
	as.addr, as.token = base, s.Tokens[0].Token
	a, err := as.agent(ctx)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	tried := 0
	for _, t := range slices.SortedStableFunc(slices.Values(s.Tools), func(a, b draftedTool) int { return strings.Compare(a.Role, b.Role) }) { // readers first
		if !t.reads || t.argument || tried == mostTried {
			continue
		}
		tried++
		result, err := a.request(ctx, "tools/call", fmt.Appendf(nil, `{"name":%s,"arguments":{}}`, jsonrpc.Quote(t.Name)))
		if err == nil {
			err = verdictOf(result)
		}
		if err == nil {
			var text string
			text, err = contentText(result)
			return &firstCall{Tool: t.Name, Text: report.Cut(text, 400)}, err
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%s does not answer a call without arguments: %v", t.Name, err))
	}
	call := &firstCall{}
	tools, err := a.list(ctx)
	for _, t := range tools {
		call.Tools = append(call.Tools, t.Name)
	}
	return call, err
}

// nextSteps returns the commands that follow.
func (e *env) nextSteps(s *setup) (commands []string) {
	program, flags := os.Args[0], e.configFlag()
	call := "tool list"
	if s.Call != nil && s.Call.Tool != "" {
		call = "tool call " + s.Call.Tool
	}
	commands = append(commands, program+" serve"+flags, "TOOLGATE_TOKEN="+s.Tokens[0].Token+" "+program+" "+call+flags)
	adopted := map[string][]string{}
	for _, o := range s.taken() {
		client := o.Client
		if o.Scope == "project" {
			client += " --project " + dialect.Workspace(o.File)
		}
		if o.File != "" {
			adopted[client] = append(adopted[client], o.Name)
		}
	}
	for _, client := range slices.Sorted(maps.Keys(adopted)) {
		commands = append(commands, fmt.Sprintf("%s adopt %s%s --only %s", program, client, flags, strings.Join(adopted[client], ",")))
	}
	return commands
}
