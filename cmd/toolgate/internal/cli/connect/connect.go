// Package connect is the commands that read and change the files of other clients, and the entry that starts
// toolgate when its user logs in. Nothing is written before it was shown, and every change can be undone.
package connect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
)

// clientFlags are the flags of commands that change files of clients.
type clientFlags struct {
	file, project           string
	write, yes, undo, force bool
	url, server, tokenEnv   string
	literal                 bool
	only, set               []string
	as, from, envFile       string
	detect, secrets         bool
}

func (f *clientFlags) add(c *cobra.Command) *cobra.Command {
	s := c.Flags()
	s.StringVar(&f.file, "file", "", "the client's `FILE`, where it is not at its usual place")
	s.StringVar(&f.project, "project", "", "`DIR` of a project: use the client's file of that project")
	s.BoolVar(&f.write, "write", false, "write the plan; without it, it is printed")
	s.BoolVar(&f.yes, "yes", false, "the same as --write, for scripts")
	s.BoolVar(&f.undo, "undo", false, "restore the file as it was before toolgate's last change")
	s.BoolVar(&f.force, "force", false, "with --undo: also when the file was changed since")
	return c
}

// addConnect adds the flags that say how the client reaches toolgate.
func (f *clientFlags) addConnect(c *cobra.Command) *cobra.Command {
	s := c.Flags()
	s.StringVar(&f.url, "url", "", "`URL` at which the client reaches toolgate, such as https://tools.example.org/mcp (default: as configured)")
	s.StringVar(&f.server, "server", "", "connect to the route of one `SERVER`, /mcp/NAME")
	s.StringVar(&f.tokenEnv, "token-env", "", "`VARIABLE` from which the client takes its token (default TOOLGATE_TOKEN where identity is configured)")
	s.BoolVar(&f.literal, "token-literal", false, "write the token of --token into the file, for clients that do not see its variable")
	return f.add(c)
}

// ConnectCommand returns the command that enters toolgate into the file of a client.
func ConnectCommand(e *command.Env) *cobra.Command {
	f := &clientFlags{}
	return f.addConnect(command.New("connect CLIENT", "add toolgate to a client's file", func(_ context.Context, args []string) error {
		return changeClient(e, args[0], f, func(e *command.Env, c clients.Client, path string, f *clientFlags) (*clientPlan, error) {
			edits, notes, err := connectEdits(e, c, f)
			if err != nil {
				return nil, err
			}
			return planEdits(c, path, edits, notes)
		})
	}))
}

// DisconnectCommand returns the command that takes toolgate out of the file of a client.
func DisconnectCommand(e *command.Env) *cobra.Command {
	f := &clientFlags{}
	c := f.add(command.New("disconnect CLIENT", "remove toolgate from a client's file", func(_ context.Context, args []string) error {
		return changeClient(e, args[0], f, planDisconnect)
	}))
	c.Flags().StringVar(&f.server, "server", "", "the entry for the route of one `SERVER`")
	return c
}

// changeClient carries out a plan for the file of a client, or undoes the file's last change
// and what was changed together with it in others.
func changeClient(e *command.Env, id string, f *clientFlags, plan func(*command.Env, clients.Client, string, *clientFlags) (*clientPlan, error), others ...string) error {
	c, path, err := clientFile(e, id, f)
	if err != nil {
		return err
	}
	if f.undo {
		return undoChanges(e, f, path, others...)
	}
	p, err := plan(e, c, path, f)
	if err != nil {
		return command.Usage(err)
	}
	return carryOut(e, p, f)
}

// clientFile returns a client and the place of its file.
func clientFile(e *command.Env, id string, f *clientFlags) (c clients.Client, path string, err error) {
	c, err = LookupClient(id)
	if err != nil || f.file != "" {
		return c, f.file, err
	}
	m := clients.System(f.project, e.Lookup)
	for _, p := range c.Places(m) {
		if (p.Scope == "project") != (f.project != "") || p.Scope == "system" {
			continue
		}
		switch _, err := readClientFile(p.Path, m.Project); {
		case err == nil:
			return c, p.Path, nil
		case m.Project != "" && !errors.Is(err, fs.ErrNotExist):
			return c, "", command.Usage(fmt.Errorf("looking for %s: %w\nhint: name the file with --file", p.Path, err))
		}
		path = cmp.Or(path, p.Path)
	}
	if path == "" {
		return c, "", command.Usage(fmt.Errorf("%s has no file of that kind on this system\nhint: name it with --file, or its project with --project", c.Name))
	}
	return c, path, nil
}

// LookupClient returns the client with an ID.
func LookupClient(id string) (clients.Client, error) {
	c, ok := clients.Lookup(id)
	if ok {
		return c, nil
	}
	return c, command.Unknown("client", id, command.TextsOf(clients.Clients(), func(c clients.Client) string { return c.ID }))
}

// entryName is the name under which a client knows toolgate.
func entryName(f *clientFlags) string {
	if f.server != "" {
		return "toolgate-" + f.server
	}
	return "toolgate"
}

// connectEdits returns the edits that enter toolgate into a client's file.
func connectEdits(e *command.Env, c clients.Client, f *clientFlags) (edits []clientfile.Edit, notes []string, err error) {
	a, variable, err := reach(e, f)
	if err != nil {
		return nil, nil, err
	}
	if variable != "" {
		a.Token = "${" + variable + "}"
	}
	if f.literal {
		switch {
		case !c.TakesToken():
			return nil, nil, fmt.Errorf("a file of %s cannot hold a token\nhint: leave --token-literal out: the client gets the token from %s", c.Name, tokenSource(c, cmp.Or(variable, "TOOLGATE_TOKEN")))
		case e.Token == "":
			return nil, nil, errors.New("--token-literal needs the token\nhint: name it with --token")
		}
		a.Token, a.Literal = e.Token, true
	}
	entry, err := c.Entry(a)
	if err != nil {
		return nil, nil, err
	}
	if variable != "" && c.HoldsToken() && !f.literal {
		notes = append(notes, fmt.Sprintf("%s expands no variables: start it with TOOLGATE_TOKEN in its environment, or write the token into its file with --token-literal", c.Name))
	} else if variable != "" && !f.literal {
		note := c.Name + " takes the token from " + tokenSource(c, variable)
		if c.TakesToken() {
			note += "; --token-literal writes the token into its file instead"
		}
		notes = append(notes, note)
	}
	if _, named := entry["name"]; named {
		entry["name"] = entryName(f)
	}
	text, err := json.Marshal(entry)
	if err != nil {
		return nil, nil, err
	}
	value := json.RawMessage(strings.ReplaceAll(string(text), "TOOLGATE_TOKEN", cmp.Or(variable, "TOOLGATE_TOKEN")))
	edits = append(fileEdits(c), clientfile.Edit{Container: c.Container, Key: c.List, Name: entryName(f), Value: value})
	if variable != "" {
		edits = append(edits, rootEdits(c)...)
	}
	return edits, notes, nil
}

// planDisconnect plans to remove toolgate from a client's file. A prompt (VS Code's inputs) to
// which the rest of the file still refers stays.
func planDisconnect(_ *command.Env, c clients.Client, path string, f *clientFlags) (*clientPlan, error) {
	entry := clientfile.Edit{Container: c.Container, Key: c.List, Name: entryName(f)}
	without, err := clientfile.Plan(path, c.Format, entry)
	if err != nil {
		return nil, err
	}
	edits := []clientfile.Edit{entry}
	for _, edit := range rootEdits(c) {
		if !bytes.Contains(without.After, []byte("${input:"+edit.Name+"}")) {
			edit.Value = nil
			edits = append(edits, edit)
		}
	}
	return planEdits(c, path, edits, nil)
}

// reach returns where a client reaches toolgate, and the variable with its token, ""
// where agents need none or get one by themselves.
func reach(e *command.Env, f *clientFlags) (a clients.Address, variable string, err error) {
	a.URL, variable = f.url, f.tokenEnv
	if _, missing := os.Stat(e.Config); a.URL == "" && errors.Is(missing, fs.ErrNotExist) {
		a.URL = "http://127.0.0.1:8787/mcp" // the default of a file that is to be made
	}
	if a.URL == "" {
		cfg, err := e.Load()
		if err != nil {
			return a, "", err
		}
		a.URL = app.AgentsURL(cfg) + "/mcp"
		if cfg.Identity.Configured && !cfg.Identity.Local && len(cfg.Identity.JWT) == 0 { // at an issuer, the client signs in by itself
			variable = cmp.Or(variable, "TOOLGATE_TOKEN")
		}
	}
	if f.server != "" {
		a.URL = strings.TrimSuffix(a.URL, "/") + "/" + f.server
	}
	a.Command, err = os.Executable()
	return a, variable, err
}

// tokenSource says where a client looks for the token.
func tokenSource(c clients.Client, variable string) string {
	if len(c.Connect.Root) > 0 {
		return "its prompt when it starts toolgate"
	}
	return "the variable " + variable + " of its environment"
}

// fileEdits returns what a client wants in its file besides entries.
func fileEdits(c clients.Client) (edits []clientfile.Edit) {
	if c.Write != nil && c.Write.Schema != "" {
		edits = append(edits, clientfile.Edit{Name: "$schema", Value: json.RawMessage(strconv.Quote(c.Write.Schema)), Keep: true})
	}
	return edits
}

// rootEdits returns what a client's file needs besides the entry: elements of lists.
func rootEdits(c clients.Client) (edits []clientfile.Edit) {
	if c.Connect == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(c.Connect.Root)) {
		for _, element := range c.Connect.Root[key] {
			edits = append(edits, listEdit(key, "id", element))
		}
	}
	return edits
}

// listEdit adds an element to a list of the file, unless it has one of this name.
func listEdit(list, name string, element map[string]any) clientfile.Edit {
	text, _ := json.Marshal(element) // of strings and booleans
	return clientfile.Edit{Container: []string{list}, Key: name, Name: fmt.Sprint(element[name]), Value: text, Keep: true}
}

// clientPlan is what a command is going to do, or has done.
type clientPlan struct {
	Client   string          `json:"client,omitempty"`
	Servers  []plannedServer `json:"servers,omitempty"`
	Warnings []string        `json:"warnings,omitempty"` // of tools that are visible afterwards, and were not
	Notes    []string        `json:"notes,omitempty"`
	Changes  []plannedChange `json:"changes"`
	Written  bool            `json:"written"`

	changes []*clientfile.Change
	secrets []string // not to be printed
	bare    bool     // secrets of other entries are not known, so no diff is printed
}

// plannedChange is one file.
type plannedChange struct {
	File   string `json:"file"`
	Diff   string `json:"diff"`
	Backup string `json:"backup,omitempty"` // of the file as it was
}

// planEdits plans edits of a client's file.
func planEdits(c clients.Client, path string, edits []clientfile.Edit, notes []string) (*clientPlan, error) {
	change, err := clientfile.Plan(path, c.Format, edits...)
	if err != nil {
		return nil, err
	}
	p := &clientPlan{Client: c.ID, Notes: notes, changes: []*clientfile.Change{change}}
	p.hideSecrets(path, change, c)
	return p, nil
}

// hideSecrets keeps the secrets of a client's file out of what is printed.
func (p *clientPlan) hideSecrets(path string, file *clientfile.Change, c clients.Client) {
	if len(bytes.TrimSpace(file.Before)) == 0 {
		return
	}
	n, err := clients.Read(clients.Source{Name: path, Path: file.Path, Data: file.Before, Client: c.ID})
	if err != nil {
		p.bare = true
		fault, _, _ := strings.Cut(err.Error(), "\n")
		p.Notes = append(p.Notes, "no diff is shown, because the servers of the file cannot be read and their secrets are not known: "+fault)
		return
	}
	p.secrets = append(p.secrets, secretValues(n.Servers)...)
}

// carryOut prints the plan, and writes it where a flag or the person says so.
func carryOut(e *command.Env, p *clientPlan, f *clientFlags) error {
	p.changes = slices.DeleteFunc(p.changes, func(c *clientfile.Change) bool { return !c.Changed() })
	p.Changes = []plannedChange{}
	for _, c := range p.changes {
		text := c.Diff()
		for _, secret := range p.secrets {
			text = strings.ReplaceAll(text, secret, "********")
		}
		if p.bare {
			text = ""
		}
		p.Changes = append(p.Changes, plannedChange{File: c.Path, Diff: text})
	}
	write := f.write || f.yes
	if !write && len(p.changes) > 0 && !e.Structured() && e.Terminal() {
		if err := e.Print(report.Of(p, clientPlanText)); err != nil {
			return err
		}
		if !e.Confirm("write this?") {
			return nil
		}
		write = true
	}
	if !write {
		return e.Print(report.Of(p, clientPlanText))
	}
	now := time.Now()
	for i, c := range p.changes { // every one, or none
		backup, err := c.Write(now)
		if err == nil {
			p.Changes[i].Backup = backup
			continue
		}
		for _, done := range slices.Backward(p.changes[:i]) {
			last, cause := clientfile.Last(done.Path)
			if cause == nil {
				cause = last.Undo(false)
			}
			err = errors.Join(err, cause)
		}
		return fmt.Errorf("%w\nhint: nothing is changed; make the plan again", err)
	}
	p.Written = len(p.changes) > 0
	return e.Print(report.Of(p, clientPlanText))
}

// undoChanges restores a file, and what was changed together with it in others.
func undoChanges(e *command.Env, f *clientFlags, path string, others ...string) error {
	first, err := clientfile.Last(path)
	if err != nil {
		return command.Usage(err)
	}
	all := []clientfile.Undoing{first}
	for _, other := range slices.DeleteFunc(others, func(path string) bool { return path == "" }) {
		if last, err := clientfile.Last(other); err == nil && last.Stamp == first.Stamp {
			all = append(all, last)
		}
	}
	for _, u := range all {
		if err := u.Check(); err != nil && !f.force {
			return command.Usage(fmt.Errorf("%w\nhint: the former file is %s; --force restores it anyway", err, u.Backup))
		}
	}
	restored := []string{}
	for _, u := range all {
		if err := u.Undo(f.force); err != nil {
			return err
		}
		restored = append(restored, u.Path)
	}
	return e.Print(report.Of(restored, undoneText))
}
