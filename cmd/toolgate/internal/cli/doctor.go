package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/connect"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/crash"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
	"github.com/toolgate/toolgate/registry/upstream"
)

// The levels of a finding of doctor, in addition to warning.
const (
	levelOK    = "ok"
	levelFault = "fault"
)

func doctorCommand(e *command.Env) *cobra.Command {
	client := false
	c := e.Printing("doctor [URL]", "find out what is wrong, and what to do", func(ctx context.Context, args []string) (*report.Report, error) {
		if client {
			s, err := examineSignIn(ctx, e, strings.Join(args, ""))
			if err != nil {
				return nil, err
			}
			return report.Of(&s.examination, doctorText), command.ExitIf(!s.OK, s.code)
		}
		if len(args) > 0 {
			return nil, command.Usage(errors.New("an address belongs to --client\nhint: toolgate doctor --client URL"))
		}
		s, err := checkFiles(ctx, e)
		if err != nil {
			return nil, err
		}
		x, err := examine(ctx, e, s)
		if err != nil {
			return nil, err
		}
		return report.Of(x, doctorText), command.ExitIf(!x.OK, x.code)
	})
	c.Flags().BoolVar(&client, "client", false, "walk the way of a client that signs in at URL, by default at the configured toolgate, up to the step at which it stops")
	return c
}

// examination is what doctor finds.
type examination struct {
	Findings []command.Finding `json:"findings"`
	OK       bool              `json:"ok"`
	Running  bool              `json:"running"` // a toolgate answers at the admin listener

	code int // exit code of the first fault
}

func (x *examination) add(level, where, message, hint string) {
	x.Findings = append(x.Findings, command.Finding{Level: level, Where: where, Message: message, Hint: hint})
}

func (x *examination) ok(where, message string) { x.add(levelOK, where, message, "") }

func (x *examination) fault(code int, where, message, hint string) {
	if x.OK {
		x.OK, x.code = false, code
	}
	x.add(levelFault, where, message, hint)
}

// examine examines the configuration as check does, then what surrounds it.
func examine(ctx context.Context, e *command.Env, s *filesCheck) (*examination, error) {
	x := &examination{OK: true}
	x.ok("configuration", text.Count(len(s.cfg.Servers), "server")+", policy "+text.ShortDigest(s.engine.Revision()))
	x.Findings = append(x.Findings, s.found...)
	x.disk(s.cfg)
	x.databases(ctx, s.cfg)
	for i := range s.cfg.Servers {
		server := &s.cfg.Servers[i]
		if message := missingCommand(server); message != "" {
			x.fault(command.ExitUnreachable, "mcpServers."+server.Name, message, server.CommandHint())
		}
	}
	if err := x.clients(e, s.cfg); err != nil {
		return nil, err
	}
	var status console.Status
	if x.Running = e.ReadStatus(ctx, &status) == nil; x.Running {
		x.gateway(&status)
		return x, nil
	}
	for _, place := range [][2]string{{"toolgate.listen", s.cfg.Listen}, {"toolgate.admin", s.cfg.Admin}} {
		name, address := place[0], place[1]
		l, err := net.Listen("tcp", address)
		if err != nil {
			x.fault(command.ExitUnreachable, name, err.Error(), "end the program that has the port, or choose another port")
			continue
		}
		_ = l.Close() // nothing was accepted
		x.ok(name, address+" is free")
	}
	if !x.OK {
		return x, nil
	}
	began := time.Now()
	return x, e.WithUpstreams(ctx, command.LiveBound, s.cfg, func(a *app.App) {
		for _, u := range a.Upstreams().Status() {
			server := console.Upstream(u)
			x.server(&server, fmt.Sprintf(" after %.1f s", u.Since.Sub(began).Seconds()))
		}
		x.Findings = append(x.Findings, a.SightFindings()...)
	})
}

// existing returns dir, or its closest parent that exists.
func existing(dir string) string {
	for _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// disk reports whether files can be made in the state and key directories, how much of the
// state directory's disk is free, and crashes of which it has stacks.
func (x *examination) disk(cfg *config.Config) {
	for _, place := range [][2]string{{"toolgate.state", cfg.State}, {"toolgate.keys", cfg.Keys}} {
		name, dir := place[0], place[1]
		if dir == "" {
			continue
		}
		if err := files.Probe(existing(dir)); err != nil {
			x.fault(command.ExitUsage, name, "writing to "+dir+": "+err.Error(), "let the user that runs toolgate write there, or name another directory")
			continue
		}
		x.ok(name, dir+" can be written")
	}
	const where = "toolgate.audit.reserve_mib"
	switch s := audit.ReadSpace(existing(cfg.State), int64(cfg.Audit.ReserveMiB)<<20); {
	case s.Err != nil:
		x.add(command.LevelWarning, where, "no reserve is kept: reading the free space: "+s.Err.Error(), "")
	case s.Reserve == 0:
		x.ok(where, "no reserve is configured")
	case s.Low():
		x.fault(command.ExitUsage, where, s.String(), "make room on the disk, move toolgate.state to another one, or keep a smaller reserve")
	case s.Scarce():
		x.add(command.LevelWarning, where, s.String(), "make room on the disk")
	default:
		x.ok(where, s.String())
	}
	for _, file := range crash.Files(crash.Dir(cfg.State)) {
		x.add(command.LevelWarning, "toolgate.state", "toolgate has crashed: its stacks are in "+file, "report them, and delete the file")
	}
}

// databases reports whether the servers of toolgate.store and toolgate.shared, if there are
// any, can be reached, the latter in time.
func (x *examination) databases(ctx context.Context, cfg *config.Config) {
	if cfg.Store != "" {
		if err := store.CheckPostgres(ctx, cfg.Store); err != nil {
			message, hint, _ := strings.Cut(err.Error(), command.HintMark)
			x.fault(command.ExitUnreachable, "toolgate.store", message, hint)
		} else {
			x.ok("toolgate.store", store.Redact(cfg.Store)+" answers")
		}
	}
	if cfg.Shared == nil {
		return
	}
	const where = "toolgate.shared"
	switch replicas, took, err := app.TryShared(ctx, cfg.Shared); {
	case err != nil:
		x.fault(command.ExitUnreachable, where, err.Error(), "start the server, or correct its URL and password")
	case took > fleet.DefaultPatience:
		x.add(command.LevelWarning, where, fmt.Sprintf("the server answers after %s, and calls wait for it, for %s at most", took.Round(time.Millisecond), fleet.LongestPatience), "move the server closer to its replicas")
	default:
		x.ok(where, fmt.Sprintf("the server answers; %s", text.Count(replicas, "replica")))
	}
}

// gateway reports what a running toolgate says about itself.
func (x *examination) gateway(s *console.Status) {
	const where = "running toolgate"
	if s.Ready && len(s.Degraded) > 0 {
		x.add(command.LevelWarning, where, "degraded: not ready are "+strings.Join(s.Degraded, ", "), "")
	} else if s.Ready {
		x.ok(where, "ready, policy "+text.ShortDigest(s.Revision))
	} else {
		x.fault(command.ExitUnreachable, where, "not ready", "its log says why")
	}
	for i := range s.Upstreams {
		x.server(&s.Upstreams[i], "")
	}
	for _, w := range s.Warnings {
		x.add(command.LevelWarning, where, w, "")
	}
}

func (x *examination) server(u *console.Upstream, after string) {
	where := "mcpServers." + u.Name
	switch u.State {
	case "disabled":
	case string(upstream.StateReady):
		x.ok(where, text.Count(u.Tools, "tool")+after)
	default:
		x.fault(command.ExitUnreachable, where, u.State+": "+u.Error, "toolgate server show "+u.Name+"; the server's own messages are in the log")
	}
	for _, w := range u.Warnings {
		x.add(command.LevelWarning, where, w, "")
	}
}

// clients reports for each client's file on this machine whether the client reaches this
// toolgate, and which servers of the configuration it also reaches by itself: such calls
// meet no policy and leave no record.
func (x *examination) clients(e *command.Env, cfg *config.Config) error {
	files, err := connect.ClientFiles(e, ".")
	for _, f := range files {
		flags, where := f.ID+e.ConfigFlag(), "client "+f.ID
		if f.Scope == "project" {
			flags += " --project ."
		}
		connected, past := reaches(&f, cfg)
		switch {
		case f.Err != nil:
			fault, _, _ := strings.Cut(f.Err.Error(), "\n")
			x.add(command.LevelNote, where, fault, "toolgate connect "+flags+" adds it")
		case len(past) > 0:
			x.add(command.LevelWarning, where, fmt.Sprintf("%s reaches %s without toolgate: these calls meet no policy and leave no record", f.Path, strings.Join(past, ", ")),
				"toolgate adopt "+flags+" moves these servers behind toolgate; toolgate connect "+flags+" only adds toolgate")
		case connected:
			x.ok(where, f.Path+" connects to toolgate")
		default:
			x.add(command.LevelNote, where, f.Path+" does not connect to toolgate", "toolgate connect "+flags+" adds it")
		}
	}
	return err
}

// reaches reports whether a client's file has an entry for toolgate, and names its servers
// that reach one of cfg.
func reaches(f *connect.ClientOnDisk, cfg *config.Config) (connected bool, past []string) {
	if f.Err != nil {
		return false, nil
	}
	own := connect.OwnServers{URL: app.AgentsURL(cfg) + "/mcp"}
	for _, s := range f.Read.Servers {
		switch {
		case s.Disabled:
		case own.IsToolgate(s.Server):
			connected = true
		default:
			// In the same way, or under its name with the same command or address, since arguments may hold secrets that were moved.
			origin := originOf(s.Server)
			if slices.ContainsFunc(cfg.Servers, func(o config.Server) bool {
				return !o.Disabled && (origin.Equal(o.Origin) || s.Name == o.Name && origin.Command == o.Origin.Command && origin.URL == o.Origin.URL)
			}) {
				past = append(past, s.Name)
			}
		}
	}
	return connected, past
}

// originOf returns how an entry in toolgate's form reaches its server, without secrets.
func originOf(entry json.RawMessage) lock.Origin {
	var s struct {
		Type, Command, URL string
		Args               []string
	}
	_ = json.Unmarshal(entry, &s) // an entry in toolgate's form
	switch {
	case s.Type != "":
	case s.URL != "":
		s.Type = config.TypeHTTP
	default:
		s.Type = config.TypeStdio
	}
	return lock.NewOrigin(s.Type, s.Command, s.Args, s.URL)
}
