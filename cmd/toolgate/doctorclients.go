package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

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
func sameOrigin(o config.Server, s config.Entry) bool {
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
