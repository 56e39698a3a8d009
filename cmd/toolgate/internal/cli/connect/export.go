package connect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/registry/config"
)

// ExportCommand returns the command that writes servers into the file of a client.
func ExportCommand(e *command.Env) *cobra.Command {
	f := &clientFlags{}
	c := f.add(command.New("export CLIENT", "write the servers of mcp.json into a client's file", func(_ context.Context, args []string) error {
		return changeClient(e, args[0], f, planExport, f.envFile)
	}))
	addNaming(c, f, "export")
	c.Flags().StringVar(&f.envFile, "env-file", "", "write secrets to this `FILE` (mode 0600), for the environment of the client")
	c.Flags().BoolVar(&f.secrets, "secrets", false, "write secrets into the client's file, and values in the place of variables that the client does not expand")
	return c
}

// planExport plans the merge of the servers of mcp.json into the file of a client.
func planExport(e *command.Env, c clients.Client, path string, f *clientFlags) (*clientPlan, error) {
	if c.Write == nil {
		return nil, fmt.Errorf("%s calls no servers: there is nothing to export to", c.Name)
	}
	opts := clients.Options(config.Options{Path: e.Config, Overlay: e.Overlay, Getenv: e.Lookup})
	own, err := clients.Entries(opts)
	if err != nil {
		return nil, err
	}
	servers, err := chooseServers(own.Servers, e.Config, f)
	if err != nil {
		return nil, err
	}
	file, err := clientfile.Read(path)
	if err != nil {
		return nil, err
	}
	p := &clientPlan{Client: c.ID, Notes: command.TextsOf(own.Notes, config.Warning.String), changes: []*clientfile.Change{file}, secrets: secretValues(own.Servers)}
	p.hideSecrets(path, file, c)
	moved, err := openSecrets(f.envFile)
	if err != nil {
		return nil, err
	}
	x := &export{client: c, before: file.Before, plan: p, moved: moved, literal: f.secrets, expand: func(text string) (string, error) { return config.Expand(opts, text) }}
	if moved == nil && !f.secrets {
		x.moved = NewSecrets(&clientfile.Change{}, "${%s}")
	}
	for _, s := range servers {
		if err := x.add(s, cmp.Or(f.as, s.Name)); err != nil {
			return nil, err
		}
	}
	if len(x.edits) > 0 {
		x.edits = append(fileEdits(c), x.edits...)
	}
	if file.After, err = clientfile.Apply(c.Format, file.Before, x.edits...); err != nil {
		return nil, err
	}
	if x.moved != nil { // not those of servers that are not written
		maps.DeleteFunc(x.moved.Values, func(name, _ string) bool { return !bytes.Contains(file.After, []byte(name)) })
	}
	if moved != nil {
		p.changes = append(p.changes, moved.change())
	}
	if x.moved != nil && len(x.moved.Values) > 0 {
		names := strings.Join(slices.Sorted(maps.Keys(x.moved.Values)), ", ")
		if f.envFile == "" {
			names += "; --env-file FILE writes them to a file, --secrets into the client's file"
		}
		p.Notes = append(p.Notes, fmt.Sprintf("secrets become variables of %s's environment: %s", c.Name, names))
	}
	if len(x.edits) > 0 {
		p.Notes = append(p.Notes, "the policy, limits, approvals and audit trail of toolgate do not follow: "+c.Name+" calls these servers itself")
	}
	return p, nil
}

// export collects the edits of a client's file.
type export struct {
	client clients.Client
	before []byte // the client's file
	plan   *clientPlan
	moved  *SecretFile // nil = secrets stay in the entries
	edits  []clientfile.Edit

	literal bool // values are written in the place of references that the client does not have
	expand  func(reference string) (string, error)
	failed  error // of expand
}

// value returns what is written in the place of a reference that the client does not have.
func (x *export) value(reference string) (string, bool) {
	if !x.literal {
		return "", false
	}
	value, err := x.expand(reference)
	if err != nil {
		x.failed = cmp.Or(x.failed, err)
		return "", false
	}
	if len(value) >= minSecretBytes {
		x.plan.secrets = append(x.plan.secrets, value)
	}
	return value, true
}

// moveTexts makes variables of the texts of files, for a client that does not read files.
func (x *export) moveTexts(server string, entry json.RawMessage) json.RawMessage {
	if x.client.Write.Text != "" || x.client.Write.Variable == "" {
		return entry
	}
	return fileReference.ReplaceAllFunc(entry, func(reference []byte) []byte {
		value, err := x.expand(string(reference))
		if err != nil {
			x.failed = cmp.Or(x.failed, err)
			return reference
		}
		x.plan.secrets = append(x.plan.secrets, value)
		return []byte(x.moved.put(server, filepath.Base(string(fileReference.FindSubmatch(reference)[1])), value))
	})
}

// add plans one server under a name.
func (x *export) add(s clients.Entry, name string) error {
	planned := newPlanned(s, name)
	server := s
	if x.moved != nil {
		server.Server = x.moveTexts(s.Name, x.moved.Move(s.Name, s.Server))
	}
	out := x.client.Export(name, server.Members(), x.value)
	if x.failed != nil {
		return fmt.Errorf("server %s: %w", s.Name, x.failed)
	}
	if out.Entry == nil {
		planned.Status, planned.Reason = "skipped", out.Losses[0].Message
		x.plan.Servers = append(x.plan.Servers, planned)
		return nil
	}
	edit := clientfile.Edit{Container: x.client.Container, Key: x.client.List, Name: name, Value: json.RawMessage(out.Entry)}
	status, err := x.status(edit)
	if err != nil {
		return err
	}
	planned.Status = status
	if status == "conflict" {
		planned.Reason = fmt.Sprintf("%s has another server of this name: remove it there, or give this one a name with --only %s --as NAME", x.client.Name, s.Name)
	} else {
		x.edits = append(x.edits, edit)
		for _, id := range out.Inputs {
			x.edits = append(x.edits, listEdit("inputs", "id", map[string]any{"type": "promptString", "id": id, "description": id, "password": true}))
		}
		for _, r := range out.Rules {
			x.edits = append(x.edits, clientfile.Edit{Container: r.Path, Name: r.Pattern, Value: json.RawMessage(strconv.FormatBool(r.Offered))})
		}
		for _, loss := range out.Losses {
			text := fmt.Sprintf("%s: %s: %s", s.Name, loss.Key, loss.Message)
			if loss.Wider { // tools that a filter hides
				x.plan.Warnings = append(x.plan.Warnings, text)
			} else {
				x.plan.Notes = append(x.plan.Notes, text)
			}
		}
	}
	x.plan.Servers = append(x.plan.Servers, planned)
	return nil
}

// status compares an entry with the one that the client's file has: new, present or
// conflict.
func (x *export) status(edit clientfile.Edit) (string, error) {
	set, err := clientfile.Apply(x.client.Format, x.before, edit)
	if err != nil {
		return "", err
	}
	edit.Value = nil
	without, err := clientfile.Apply(x.client.Format, x.before, edit)
	switch {
	case err != nil && !errors.Is(err, clientfile.ErrForm):
		return "", err
	case bytes.Equal(set, x.before):
		return "present", nil
	case err != nil || !bytes.Equal(without, x.before):
		return "conflict", nil //nolint:nilerr // an entry of another form is in the way
	}
	return "new", nil
}
