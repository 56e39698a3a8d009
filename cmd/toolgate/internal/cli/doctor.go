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
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/crash"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
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

func doctorCommand(e *env) *cobra.Command {
	return command("doctor", "find out what is wrong, and what to do", func(ctx context.Context, _ []string) error { return e.doctor(ctx) })
}

// examination collects what doctor finds.
type examination struct {
	found   []finding
	code    int  // exit code of the first fault
	running bool // a toolgate answers at the admin listener
}

func (x *examination) ok(where, message string) {
	x.found = append(x.found, finding{Level: levelOK, Where: where, Message: message})
}

func (x *examination) fault(code int, where, message, hint string) {
	if x.code == exitOK {
		x.code = code
	}
	x.found = append(x.found, finding{Level: levelFault, Where: where, Message: message, Hint: hint})
}

// doctor prints what is found.
func (e *env) doctor(ctx context.Context) error {
	s, err := e.checkFiles(ctx)
	if err != nil {
		return err
	}
	x, err := e.examine(ctx, s)
	if err != nil {
		return err
	}
	err = e.Print("doctor", x.document())
	return errors.Join(err, exitIf(x.code != exitOK, x.code))
}

// document is an examination as it is printed.
func (x *examination) document() map[string]any {
	return map[string]any{"ok": x.code == exitOK, "running": x.running, "findings": x.found}
}

// examine examines the configuration as check does, then what surrounds it.
func (e *env) examine(ctx context.Context, s *filesCheck) (*examination, error) {
	x := &examination{}
	x.ok("configuration", text.Count(len(s.cfg.Servers), "server")+", policy "+short(s.engine.Revision()))
	x.found = append(x.found, s.found...)
	x.directories(s.cfg)
	x.disk(s.cfg)
	x.database(ctx, s.cfg)
	for _, file := range crash.Files(crash.Dir(s.cfg.State)) {
		x.found = append(x.found, finding{Level: levelWarning, Where: "toolgate.state", Message: "toolgate has crashed: its stacks are in " + file, Hint: "report them, and delete the file"})
	}
	x.shared(ctx, s.cfg)
	x.commands(s.cfg)
	if err := x.clients(e, s.cfg); err != nil {
		return nil, err
	}
	var status console.Status
	x.running = e.readStatus(ctx, &status) == nil
	x.listeners(s.cfg, x.running)
	if x.running {
		x.gateway(&status)
	} else if x.code == exitOK {
		began := time.Now()
		if err := e.withUpstreams(ctx, liveBound, s.cfg, func(a *app.App) { x.servers(a, began) }); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// directories reports whether files can be made in the state and key directories.
func (x *examination) directories(cfg *config.Config) {
	for _, place := range [][2]string{{"toolgate.state", cfg.State}, {"toolgate.keys", cfg.Keys}} {
		name, dir := place[0], place[1]
		if dir == "" {
			continue
		}
		if err := files.Probe(existing(dir)); err != nil {
			x.fault(exitUsage, name, "writing to "+dir+": "+err.Error(), "let the user that runs toolgate write there, or name another directory")
			continue
		}
		x.ok(name, dir+" can be written")
	}
}

// existing returns dir, or its closest parent that exists.
func existing(dir string) string {
	for _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir); _, err = os.Stat(dir) {
		dir = filepath.Dir(dir)
	}
	return dir
}

// disk reports how much of the state directory's disk is free, and the reserve.
func (x *examination) disk(cfg *config.Config) {
	const where = "toolgate.audit.reserve_mib"
	switch s := audit.ReadSpace(existing(cfg.State), int64(cfg.Audit.ReserveMiB)<<20); {
	case s.Err != nil:
		x.found = append(x.found, finding{Level: levelWarning, Where: where, Message: "no reserve is kept: reading the free space: " + s.Err.Error()})
	case s.Reserve == 0:
		x.ok(where, "no reserve is configured")
	case s.Low():
		x.fault(exitUsage, where, s.String(), "make room on the disk, move toolgate.state to another one, or keep a smaller reserve")
	case s.Scarce():
		x.found = append(x.found, finding{Level: levelWarning, Where: where, Message: s.String(), Hint: "make room on the disk"})
	default:
		x.ok(where, s.String())
	}
}

// database reports whether the database of toolgate.store can be reached.
func (x *examination) database(ctx context.Context, cfg *config.Config) {
	if cfg.Store == "" {
		return
	}
	if err := store.CheckPostgres(ctx, cfg.Store); err != nil {
		message, hint, _ := strings.Cut(err.Error(), "\nhint: ")
		x.fault(exitUnreachable, "toolgate.store", message, hint)
		return
	}
	x.ok("toolgate.store", store.Redact(cfg.Store)+" answers")
}

// shared reports whether the server of toolgate.shared answers in time.
func (x *examination) shared(ctx context.Context, cfg *config.Config) {
	if cfg.Shared == nil {
		return
	}
	const where = "toolgate.shared"
	switch replicas, took, err := app.TryShared(ctx, cfg.Shared); {
	case err != nil:
		x.fault(exitUnreachable, where, err.Error(), "start the server, or correct its URL and password")
	case took > fleet.DefaultPatience:
		x.found = append(x.found, finding{Level: levelWarning, Where: where, Hint: "move the server closer to its replicas",
			Message: fmt.Sprintf("the server answers after %s, and calls wait for it, for %s at most", took.Round(time.Millisecond), fleet.LongestPatience)})
	default:
		x.ok(where, fmt.Sprintf("the server answers; %s", text.Count(replicas, "replica")))
	}
}

// commands reports the commands of servers that are not found.
func (x *examination) commands(cfg *config.Config) {
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		if message := missingCommand(s); message != "" {
			x.fault(exitUnreachable, "mcpServers."+s.Name, message, s.CommandHint())
		}
	}
}

// listeners reports whether the addresses are free, unless a toolgate answers there.
func (x *examination) listeners(cfg *config.Config, running bool) {
	if running {
		return
	}
	for _, place := range [][2]string{{"toolgate.listen", cfg.Listen}, {"toolgate.admin", cfg.Admin}} {
		name, address := place[0], place[1]
		l, err := net.Listen("tcp", address)
		if err != nil {
			x.fault(exitUnreachable, name, err.Error(), "end the program that has the port, or choose another port")
			continue
		}
		_ = l.Close() // nothing was accepted
		x.ok(name, address+" is free")
	}
}

// gateway reports what a running toolgate says about itself.
func (x *examination) gateway(s *console.Status) {
	if s.Ready && len(s.Degraded) > 0 {
		x.found = append(x.found, finding{Level: levelWarning, Where: "running toolgate", Message: "degraded: not ready are " + strings.Join(s.Degraded, ", ")})
	} else if s.Ready {
		x.ok("running toolgate", "ready, policy "+short(s.Revision))
	} else {
		x.fault(exitUnreachable, "running toolgate", "not ready", "its log says why")
	}
	for i := range s.Upstreams {
		x.server(&s.Upstreams[i], "")
	}
	for _, w := range s.Warnings {
		x.found = append(x.found, finding{Level: levelWarning, Where: "running toolgate", Message: w})
	}
}

// servers reports the servers of a toolgate that was opened at a time.
func (x *examination) servers(a *app.App, began time.Time) {
	for _, u := range a.Upstreams().Status() {
		server := console.Upstream(u)
		x.server(&server, fmt.Sprintf(" after %.1f s", u.Since.Sub(began).Seconds()))
	}
	x.found = append(x.found, a.SightFindings()...)
}

func (x *examination) server(u *console.Upstream, after string) {
	where := "mcpServers." + u.Name
	switch u.State {
	case "disabled":
	case string(upstream.StateReady):
		x.ok(where, text.Count(u.Tools, "tool")+after)
	default:
		x.fault(exitUnreachable, where, u.State+": "+u.Error, "toolgate server show "+u.Name+"; the server's own messages are in the log")
	}
	for _, w := range u.Warnings {
		x.found = append(x.found, finding{Level: levelWarning, Where: where, Message: w})
	}
}

// clients reports for each client's file on this machine whether the client reaches this
// toolgate, and which servers of the configuration it also reaches by itself: such calls
// meet no policy and leave no record.
func (x *examination) clients(e *env, cfg *config.Config) error {
	files, err := e.clientFiles(".")
	for _, f := range files {
		x.client(e, cfg, &f)
	}
	return err
}

func (x *examination) client(e *env, cfg *config.Config, f *clientOnDisk) {
	flags := e.configFlag()
	if f.Scope == "project" {
		flags += " --project ."
	}
	found := finding{Level: levelNote, Where: "client " + f.ID, Message: f.Path + " does not connect to toolgate", Hint: "toolgate connect " + f.ID + flags + " adds it"}
	connected, past := f.reaches(cfg)
	switch {
	case f.err != nil:
		found.Message, _, _ = strings.Cut(f.err.Error(), "\n")
	case len(past) > 0:
		found.Level, found.Message = levelWarning, fmt.Sprintf("%s reaches %s without toolgate: these calls meet no policy and leave no record", f.Path, strings.Join(past, ", "))
		found.Hint = "toolgate adopt " + f.ID + flags + " moves these servers behind toolgate; toolgate connect " + f.ID + flags + " only adds toolgate"
	case connected:
		found.Level, found.Message, found.Hint = levelOK, f.Path+" connects to toolgate", ""
	}
	x.found = append(x.found, found)
}

// reaches reports whether a client's file has an entry for toolgate, and names its servers
// that cfg has too.
func (f *clientOnDisk) reaches(cfg *config.Config) (connected bool, past []string) {
	if f.err != nil {
		return false, nil
	}
	own := ownServers{url: app.URL(cfg.Listen, cfg.TLS) + "/mcp"}
	for _, s := range f.read.Servers {
		switch {
		case s.Disabled:
		case own.isToolgate(s.Server):
			connected = true
		case slices.ContainsFunc(cfg.Servers, func(o config.Server) bool { return !o.Disabled && sameOrigin(o, s) }):
			past = append(past, s.Name)
		}
	}
	return connected, past
}

// sameOrigin reports whether an entry reaches the server o: in the same way, or under its
// name with the same command or address, since arguments may hold secrets that were moved.
func sameOrigin(o config.Server, s clients.Entry) bool {
	origin := originOf(s.Server)
	return origin.Equal(o.Origin) || s.Name == o.Name && origin.Command == o.Origin.Command && origin.URL == o.Origin.URL
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
