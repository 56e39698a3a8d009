package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/plural"
	"github.com/toolgate/toolgate/internal/wholefile"
	"github.com/toolgate/toolgate/registry/config"
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
	found []finding
	code  int // exit code of the first fault
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

// doctor examines the configuration as check does, then what surrounds it.
func (e *env) doctor(ctx context.Context) error {
	s, err := e.checkFiles(ctx)
	if err != nil {
		return err
	}
	x := &examination{}
	x.ok("configuration", plural.Count(len(s.cfg.Servers), "server")+", policy "+short(s.engine.Revision()))
	x.found = append(x.found, s.found...)
	x.directories(s.cfg)
	x.disk(s.cfg)
	x.commands(s.cfg)
	if err := x.clients(e, s.cfg); err != nil {
		return err
	}
	var status console.Status
	running := e.readStatus(ctx, &status) == nil
	x.listeners(s.cfg, running)
	if running {
		x.gateway(&status)
	} else if x.code == exitOK {
		began := time.Now()
		if err := e.withUpstreams(ctx, liveBound, s.cfg, func(a *app.App) { x.servers(a, began) }); err != nil {
			return err
		}
	}
	err = e.Print("doctor", map[string]any{"ok": x.code == exitOK, "running": running, "findings": x.found})
	return errors.Join(err, exitIf(x.code != exitOK, x.code))
}

// directories reports whether files can be made in the state and key directories.
func (x *examination) directories(cfg *config.Config) {
	for _, place := range [][2]string{{"toolgate.state", cfg.State}, {"toolgate.keys", cfg.Keys}} {
		name, dir := place[0], place[1]
		if dir == "" {
			continue
		}
		if err := wholefile.Probe(existing(dir)); err != nil {
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

// commands reports the commands of servers that are not found.
func (x *examination) commands(cfg *config.Config) {
	for i := range cfg.Servers {
		s := &cfg.Servers[i]
		if message := missingCommand(s); message != "" {
			x.fault(exitUnreachable, "mcpServers."+s.Name, message, "install "+s.Command+", or write its whole path as command")
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
	if s.Ready {
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
		x.ok(where, plural.Count(u.Tools, "tool")+after)
	default:
		x.fault(exitUnreachable, where, u.State+": "+u.Error, "toolgate server show "+u.Name+"; the server's own messages are in the log")
	}
	for _, w := range u.Warnings {
		x.found = append(x.found, finding{Level: levelWarning, Where: where, Message: w})
	}
}
