package connect

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/tailscale/hujson"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/internal/tree"
	"github.com/toolgate/toolgate/registry/config"
)

// ImportCommand returns the command that reads servers from the file of a client.
func ImportCommand(e *command.Env) *cobra.Command {
	f := &clientFlags{}
	c := f.add(command.New("import [CLIENT | FILE]", "take over the servers of a client's file", func(_ context.Context, args []string) error {
		if f.undo {
			return undoChanges(e, f, e.Config, f.envFile)
		}
		if len(args) == 0 && f.from == "" || f.detect {
			return detectClients(e, f)
		}
		if f.from != "" {
			if _, err := LookupClient(f.from); err != nil {
				return err
			}
		}
		id, path := f.from, strings.Join(args, "")
		if _, known := clients.Lookup(path); known || len(args) == 0 {
			c, found, err := clientFile(e, cmp.Or(path, id), f)
			if err != nil {
				return err
			}
			id, path = c.ID, found
		}
		p, _, err := planImport(e, id, path, f)
		if err != nil {
			return command.Usage(err)
		}
		return carryOut(e, p, f)
	}))
	c.Flags().BoolVar(&f.detect, "detect", false, "list the files of clients on this machine")
	c.Flags().StringVar(&f.from, "from", "", "the `CLIENT` that wrote the file, where that is not recognised")
	addImport(c, f)
	return c
}

// addImport adds the flags that say what is imported, and how.
func addImport(c *cobra.Command, f *clientFlags) {
	addNaming(c, f, "import")
	AddInputs(c, &f.set)
	c.Flags().StringVar(&f.envFile, "env-file", "", "move secrets to this `FILE` (mode 0600), and write ${NAME} in their place")
}

// AddInputs adds the flag that gives values to inputs.
func AddInputs(c *cobra.Command, set *[]string) {
	c.Flags().StringArrayVar(set, "set", nil, "`NAME=VALUE` of an input that the client's file leaves to people; may be repeated")
}

// addNaming adds the flags that choose servers, and name one of them.
func addNaming(c *cobra.Command, f *clientFlags, verb string) {
	c.Flags().StringSliceVar(&f.only, "only", nil, "`NAME` of a server to "+verb+"; may be repeated (default: all)")
	c.Flags().StringVar(&f.as, "as", "", "another `NAME` for the one server that --only chooses")
}

// AdoptCommand returns the command that imports the servers of a client and connects it.
func AdoptCommand(e *command.Env) *cobra.Command {
	f := &clientFlags{}
	service := false
	c := f.addConnect(command.New("adopt CLIENT", "move the servers of a client behind toolgate", func(ctx context.Context, args []string) error {
		err := changeClient(e, args[0], f, planAdopt, e.Config, f.envFile)
		switch {
		case err != nil:
		case f.undo:
			hintService(e)
		case f.write || f.yes:
			err = OfferService(ctx, e, service, !f.yes && !e.Structured() && e.Terminal())
		}
		return err
	}))
	c.Flags().BoolVar(&service, "service", false, "with --write: start toolgate at login, as toolgate service install does")
	addImport(c, f)
	return c
}

// planAdopt plans to import the servers of a client, and to put toolgate in their place.
func planAdopt(e *command.Env, c clients.Client, path string, f *clientFlags) (*clientPlan, error) {
	p, taken, err := planImport(e, c.ID, path, f)
	if err != nil {
		return nil, err
	}
	edits, notes, err := connectEdits(e, c, f)
	if err != nil {
		return nil, err
	}
	for _, name := range taken {
		for _, container := range append([][]string{c.Container}, c.Others...) {
			edits = append(edits, clientfile.Edit{Container: container, Key: c.List, Name: name})
		}
	}
	change, err := clientfile.Plan(path, c.Format, edits...)
	p.Notes, p.changes = append(p.Notes, notes...), append(p.changes, change)
	return p, err
}

// plannedServer is one server of the client's file.
type plannedServer struct {
	Name   string `json:"name"`
	As     string `json:"as,omitempty"` // the name that it gets, where that differs
	Status string `json:"status"`       // new, present, conflict or skipped
	Reason string `json:"reason,omitempty"`
}

func newPlanned(s clients.Entry, name string) plannedServer {
	p := plannedServer{Name: s.Name, Status: "new"}
	if name != s.Name {
		p.As = name
	}
	return p
}

// planImport plans the merge of a client's servers into mcp.json. taken are the names,
// in the client's file, of the servers that mcp.json has afterwards.
func planImport(e *command.Env, id, path string, f *clientFlags) (p *clientPlan, taken []string, err error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, err
	}
	data, err := readClientFile(absolute, f.project)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the client's file %s: %w", path, err)
	}
	n, err := clients.Read(clients.Source{Name: path, Path: absolute, Data: data, Client: id, Given: setNames(f.set)})
	if err != nil {
		return nil, nil, err
	}
	own, err := readOwn(e.Config)
	if err != nil {
		return nil, nil, err
	}
	if a, _, err := reach(e, &clientFlags{url: f.url}); err == nil { // a faulty mcp.json is reported by check
		own.URL = a.URL
	}
	p = &clientPlan{Client: n.Client.ID, Notes: command.TextsOf(n.Notes, config.Warning.String)}
	servers, err := chooseServers(n.Servers, path, f)
	if err != nil {
		return nil, nil, err
	}
	env, err := openSecrets(f.envFile)
	if err != nil {
		return nil, nil, err
	}
	given, err := GivenValues(n.Inputs, f.set)
	if err != nil {
		return nil, nil, err
	}
	secrets, missing, err := FillInputs(e, n.Inputs, own.lacks(servers, f.as), env, given, true)
	switch {
	case err != nil:
		return nil, nil, err
	case missing != "" && (f.write || f.yes):
		return nil, nil, errors.New(strings.Replace(missing, ": --set", command.HintMark+"--set", 1))
	case missing != "":
		p.Notes = append(p.Notes, missing)
	}
	p.secrets = append(secrets, secretValues(servers)...)
	edits, taken := p.merge(servers, own, n.Inputs, env, f.as)
	change, err := clientfile.Plan(e.Config, tree.JSON, edits...)
	if err != nil {
		return nil, nil, err
	}
	p.changes = append(p.changes, change)
	if env != nil {
		p.changes = append(p.changes, env.change())
	} else if len(p.secrets) > 0 {
		slices.Sort(p.secrets)
		p.secrets = slices.Compact(p.secrets)
		p.Notes = append(p.Notes, text.Count(len(p.secrets), "secret")+" in plain text; --env-file FILE moves secrets to a file of their own")
	}
	return p, taken, nil
}

// lacks returns the servers that are neither in mcp.json, by their names there, nor
// toolgate itself.
func (o OwnServers) lacks(servers []clients.Entry, as string) (found []*clients.Entry) {
	for i, s := range servers {
		if _, exists := o.servers[cmp.Or(as, s.Name)]; !exists && s.Name != "toolgate" && !o.IsToolgate(s.Server) {
			found = append(found, &servers[i])
		}
	}
	return found
}

// chooseServers returns the servers of a file that the flags choose.
func chooseServers(servers []clients.Entry, path string, f *clientFlags) (found []clients.Entry, err error) {
	unknown := slices.Clone(f.only)
	for _, s := range servers {
		if len(f.only) == 0 || slices.Contains(f.only, s.Name) {
			found = append(found, s)
			unknown = slices.DeleteFunc(unknown, func(name string) bool { return name == s.Name })
		}
	}
	switch {
	case len(unknown) > 0:
		return nil, fmt.Errorf("%s has no server %q", path, unknown)
	case f.as != "" && len(found) != 1:
		return nil, errors.New("--as names one server\nhint: choose it with --only")
	}
	return found, nil
}

// merge returns the edits of mcp.json and the servers that they take, by their names in
// the client's file, and says what becomes of each server.
func (p *clientPlan) merge(servers []clients.Entry, own OwnServers, inputs []clients.Input, env *SecretFile, as string) (edits []clientfile.Edit, taken []string) {
	for _, s := range servers {
		name := cmp.Or(as, s.Name)
		planned := newPlanned(s, name)
		entry, settings := s.Server, s.Settings
		present, exists := own.servers[name]
		switch {
		case s.Name == "toolgate" || own.IsToolgate(s.Server):
			planned.Status, planned.Reason = "skipped", "it is toolgate itself"
		case exists && SameFilled(present, s.Server, inputs):
			planned.Status = "present"
		case exists:
			planned.Status, planned.Reason = "conflict", "mcp.json has another server of this name: give this one a name with --only "+s.Name+" --as NAME"
		default:
			if env != nil {
				entry = env.Move(name, entry)
			}
			edits = append(edits, clientfile.Edit{Container: []string{own.container}, Name: name, Value: entry})
			if settings != nil {
				edits = append(edits, clientfile.Edit{Container: []string{"toolgate", "servers"}, Name: name, Value: settings})
			}
		}
		if planned.Status == "new" || planned.Status == "present" {
			taken = append(taken, s.Written)
		}
		p.Servers = append(p.Servers, planned)
	}
	return edits, taken
}

// IsToolgate reports whether an entry of a client starts toolgate, or reaches the one of
// this mcp.json.
func (o OwnServers) IsToolgate(entry json.RawMessage) bool {
	var s struct {
		URL     string   `json:"url"`
		Command string   `json:"command"`
		Args    []string `json:"args"`
	}
	_ = json.Unmarshal(entry, &s) // an entry in toolgate's form
	base := filepath.Base(filepath.ToSlash(s.Command))
	starts := (base == "toolgate" || base == "toolgate.exe") && len(s.Args) > 0 && s.Args[0] == "stdio"
	return starts || o.URL != "" && (s.URL == o.URL || strings.HasPrefix(s.URL, o.URL+"/"))
}

// OwnServers are the servers of mcp.json as they are written.
type OwnServers struct {
	URL       string // where clients reach toolgate; "" = not known
	container string
	servers   map[string]json.RawMessage
}

// readOwn reads the servers of mcp.json, which need not exist.
func readOwn(path string) (own OwnServers, err error) {
	own.container = "mcpServers"
	c, err := clientfile.Read(path)
	if err != nil || len(c.Before) == 0 {
		return own, err
	}
	plain, err := hujson.Standardize(slices.Clone(c.Before))
	if err != nil {
		return own, fmt.Errorf("reading %s: it is not JSON\nhint: toolgate check says where", path)
	}
	var root map[string]json.RawMessage
	if err := json.Unmarshal(plain, &root); err != nil {
		return own, fmt.Errorf("reading %s: %w", path, err)
	}
	if root["mcpServers"] == nil && root["servers"] != nil {
		own.container = "servers"
	}
	if servers := root[own.container]; servers != nil {
		if err := json.Unmarshal(servers, &own.servers); err != nil {
			return own, fmt.Errorf("reading %s: %s: %w", path, own.container, err)
		}
	}
	// The texts of files below the directory take the place of their references, as before their
	// secrets were moved there. What cannot be read stays as it is.
	for name, entry := range own.servers {
		own.servers[name] = fileReference.ReplaceAllFunc(entry, func(reference []byte) []byte {
			name := filepath.FromSlash(string(fileReference.FindSubmatch(reference)[1]))
			text, err := config.ReadFile(filepath.Join(filepath.Dir(path), name))
			if err != nil || !filepath.IsLocal(name) {
				return reference
			}
			return Quoted(strings.TrimSuffix(string(text), "\n"))
		})
	}
	return own, nil
}

var fileReference = regexp.MustCompile(`\$\{file:([^}"\\]+)\}`)

// foundClient is a client's file on this machine.
type foundClient struct {
	Client  string   `json:"client"`
	Scope   string   `json:"scope"`
	File    string   `json:"file"`
	Servers []string `json:"servers"`
	Secrets int      `json:"secrets"` // written as they are
	Notes   int      `json:"notes"`   // keys that an import rewrites or leaves out
	Problem string   `json:"problem,omitempty"`
}

// detectClients lists the files of clients on this machine.
func detectClients(e *command.Env, f *clientFlags) error {
	files, err := ClientFiles(e, cmp.Or(f.project, "."))
	if err != nil {
		return err
	}
	found := []foundClient{}
	for _, file := range files {
		c := foundClient{Client: file.ID, Scope: file.Scope, File: file.Path, Servers: []string{}}
		if file.Err != nil {
			c.Problem = file.Err.Error()
		} else {
			c.Servers = append(c.Servers, command.TextsOf(file.Read.Servers, func(s clients.Entry) string { return s.Name })...)
			c.Secrets, c.Notes = len(secretValues(file.Read.Servers)), len(file.Read.Notes)
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		fmt.Fprintln(e.Stderr, "no file of a client was found\nhint: toolgate import FILE reads one; --project DIR looks for those of a project")
	}
	return e.Print(report.Of(found, clientsText))
}

// A ClientOnDisk is a client's file on this machine, read.
type ClientOnDisk struct {
	clients.Client
	clients.Place
	Read *clients.Reading
	Err  error // why Read is nil
}

// ClientFiles reads the files of clients on this machine, those of a project included,
// but for the configuration and that of the working directory.
func ClientFiles(e *command.Env, project string) (files []ClientOnDisk, err error) {
	own, err := filepath.Abs(e.Config)
	here, failed := filepath.Abs(command.DefaultConfig)
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	for _, c := range clients.Clients() {
		if len(c.Container) == 0 {
			continue // they describe servers that are installed
		}
		places := c.Places(clients.System(project, e.Lookup))
		for _, place := range places {
			if place.Scope == "project" && slices.Contains(places, clients.Place{Scope: "user", Path: place.Path}) {
				continue // the project is the user's home
			}
			if place.Path == own || place.Path == here {
				continue
			}
			f := ClientOnDisk{Client: c, Place: place}
			within := ""
			if place.Scope == "project" {
				within = project
			}
			data, err := readClientFile(place.Path, within)
			switch {
			case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
				continue
			case err != nil:
				f.Err = fmt.Errorf("reading %s: %w", place.Path, err)
			default:
				f.Read, f.Err = clients.Read(clients.Source{Name: place.Path, Path: place.Path, Data: data, Client: c.ID})
			}
			files = append(files, f)
		}
	}
	return files, nil
}

// readClientFile reads a client's file, which others may have written. A file of a project is
// not read through a link out of the project; project is "" for the files of the user.
func readClientFile(path, project string) ([]byte, error) {
	if project == "" {
		return files.Read(path, clientfile.MaxBytes)
	}
	dir, err := filepath.Abs(project)
	if err != nil {
		return nil, err
	}
	name, err := filepath.Rel(dir, path)
	if err != nil {
		return nil, err
	}
	return files.ReadIn(dir, name, clientfile.MaxBytes)
}
