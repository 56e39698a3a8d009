package cli

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
	"path/filepath"
	"slices"
	"strings"
	"time"

	strict "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/connect"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/policies"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients/clientfile"
	"github.com/toolgate/toolgate/internal/files"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/lock"
)

// initFlags say which servers init offers, and whether it asks.
type initFlags struct {
	clients []string // IDs; none = all
	set     []string // NAME=VALUE of inputs
	project string   // directory whose servers are taken too; "" = those of this one are offered
	yes     bool
	service bool // start at login
}

func initCommand(e *command.Env) (c *cobra.Command) {
	f := &initFlags{}
	c = command.New("init [DIR]", "set toolgate up for your own servers", func(ctx context.Context, args []string) error {
		if !c.Flags().Changed("log-level") {
			e.LogLevel = "error" // what matters is in the report
		}
		if c.Flags().Changed("config") || c.Flags().Changed("overlay") {
			return command.Usage(errors.New("init writes mcp.json into a directory\nhint: toolgate init DIR"))
		}
		return setUp(ctx, e, cmp.Or(strings.Join(args, ""), "."), f)
	})
	c.Flags().StringSliceVar(&f.clients, "client", nil, "`CLIENT` whose servers to offer, as toolgate import names it; may be repeated (default: all)")
	c.Flags().StringVar(&f.project, "project", "", "`DIR` of a project: take the servers of its files too")
	connect.AddInputs(c, &f.set)
	c.Flags().BoolVar(&f.yes, "yes", false, "take the defaults, and ask nothing")
	c.Flags().BoolVar(&f.service, "service", false, "start toolgate at login, as toolgate service install does")
	return c
}

// A setup is what init is going to do, or has done.
type setup struct {
	Dir      string            `json:"dir"`
	Servers  []*offer          `json:"servers"`
	Notes    []string          `json:"notes,omitempty"`
	Files    []plannedFile     `json:"files"`
	Written  bool              `json:"written"`
	Tools    []draftedTool     `json:"tools,omitempty"`
	Tokens   []app.NewToken    `json:"tokens,omitempty"`
	Findings []command.Finding `json:"findings,omitempty"`
	Call     *firstCall        `json:"call,omitempty"`
	Next     []string          `json:"next,omitempty"` // commands

	e       *command.Env
	lock    *lock.File
	secrets *connect.SecretFile // every secret of the servers, a file for each
}

// setUp makes a configuration, a policy and a lock for the servers that a person has, and
// ends with a first call. Nothing is started or written before the person agrees, and no
// file is overwritten.
func setUp(ctx context.Context, e *command.Env, dir string, f *initFlags) (err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	e.Config = filepath.Join(dir, command.DefaultConfig)
	s := &setup{Dir: dir, e: e, lock: &lock.File{}, secrets: connect.NewSecrets(&clientfile.Change{}, "${file:secrets/%s}")}
	if s.Servers, s.Notes, err = offers(e, f); err != nil {
		return err
	}
	agreed, err := s.agree(f)
	if err == nil && agreed {
		err = s.discover(ctx)
	}
	if err != nil || !agreed {
		return err
	}
	s.Tokens = []app.NewToken{
		app.MakeToken(config.Token{Subject: "agent", Person: "owner", Roles: []string{roleReader, roleWriter}}),
		app.MakeToken(config.Token{Subject: "approver", Person: "approver", Roles: []string{roleApprover}}),
	}
	if err = s.plan(); err == nil {
		err = s.write()
	}
	if err != nil {
		return err
	}
	failed := s.tryOut(ctx) // the tokens are printed in any case
	s.Next = s.nextSteps()
	if err := errors.Join(e.Print(report.Of(s, setupText)), failed); err != nil {
		return err
	}
	return connect.OfferService(ctx, e, f.service, !f.yes && !e.Structured() && e.Terminal())
}

// agree completes the plan, and reports whether it is to be carried out. Without --yes a
// person is asked; where there is nobody to ask, the plan is printed.
func (s *setup) agree(f *initFlags) (bool, error) {
	e := s.e
	asks := !f.yes && !e.Structured() && e.Terminal()
	if asks && len(s.Servers) > 0 {
		if err := e.Write(report.Of(s, offersText).Text(report.Table)); err != nil {
			return false, err
		}
		if !choose(e, s.Servers) {
			return false, nil
		}
	}
	if err := fillOffers(e, s, f); err != nil {
		return false, err
	}
	if len(s.taken()) == 0 {
		s.Servers = append(s.Servers, standardTools())
	}
	if err := s.plan(); err != nil || f.yes {
		return f.yes, err
	}
	if err := e.Print(report.Of(s, setupText)); err != nil {
		return false, err
	}
	if !asks {
		fmt.Fprintln(e.Stderr, "nothing is started or written\nhint: --yes does both")
		return false, nil
	}
	return e.Confirm(fmt.Sprintf("start %s, and write these files?", text.Count(len(s.taken()), "server"))), nil
}

// Count returns how many tools a role has of its own that are held, or are not.
func (s *setup) Count(role string, held bool) (n int) {
	for _, t := range s.Tools {
		if t.Role == role && t.Held == held {
			n++
		}
	}
	return n
}

func (s *setup) taken() (taken []*offer) {
	for _, o := range s.Servers {
		if o.Taken {
			taken = append(taken, o)
		}
	}
	return taken
}

// startBound is how long init waits for servers: a package runner may fetch one first.
const startBound = time.Minute

// discover starts the servers that are taken, in a state of their own, and drafts roles
// for their tools. A server that does not answer is not taken.
func (s *setup) discover(ctx context.Context) error {
	e := s.e
	cfg, err := loadPlanned(e, s.Files)
	if err != nil {
		return e.Unservable(err, "")
	}
	alone := whole(cfg, cfg.Servers)
	alone.Policy.Path = "" // it is drafted from what the servers list
	var failed map[string]error
	var unread error
	fmt.Fprintf(e.Stderr, "starting %s\n", text.Count(len(cfg.Servers), "server"))
	err = e.WithUpstreams(ctx, startBound, alone, func(a *app.App) {
		s.lock.Servers, failed = listed(ctx, a, cfg.Servers)
		var pins []registry.Pin
		pins, unread = a.Upstreams().Pins().List(ctx)
		refused := a.Upstreams().Catalogue().Quarantined()
		for i := range pins { // those included that only some clients see
			t, server := policies.Pinned(cfg, &pins[i])
			if server != nil && pins[i].Accepted != "" && !slices.ContainsFunc(refused, func(r *registry.Tool) bool { return r.Exposed == t.Exposed }) {
				s.Tools = append(s.Tools, draftTool(t, pins[i].Definition()))
			}
		}
	})
	switch {
	case ctx.Err() != nil:
		return command.ErrInterrupted
	case err != nil || unread != nil:
		return errors.Join(err, unread)
	case len(s.lock.Servers) == 0:
		return &command.Exit{Code: command.ExitUnreachable, Err: fmt.Errorf("%w\nhint: nothing is written; take other servers, or none for the standard tools", joined(failed))}
	}
	for _, o := range s.taken() {
		if cause := failed[o.Name]; cause != nil {
			o.Taken, o.Reason = false, cause.Error()
		}
	}
	return nil
}

// firstCall is what the agent of a new configuration got.
type firstCall struct {
	Tool  string   `json:"tool,omitempty"`  // that it called; "" = it listed the tools
	Text  string   `json:"text,omitempty"`  // the beginning of the result
	Tools []string `json:"tools,omitempty"` // names in the list
}

// tryOut checks what was written, as check does, and makes a first call through it: it serves
// the configuration on free ports until every upstream has answered, failed or had its time.
func (s *setup) tryOut(ctx context.Context) error {
	files, err := checkFiles(ctx, s.e)
	if err != nil {
		return err
	}
	s.Findings = files.found
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	aside := *files.cfg
	aside.Listen, aside.Admin = "127.0.0.1:0", "127.0.0.1:0"
	listeners, err := app.Listen(&aside)
	if err != nil {
		return err
	}
	defer listeners.Close()
	a, err := app.Open(ctx, listeners.Bound(&aside), s.e.AppOptions())
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, listeners, app.Reload{}) }()
	started, enough := context.WithTimeout(ctx, startBound)
	a.WaitForUpstreams(started)
	enough()
	for _, f := range findings(a) {
		if !slices.Contains(s.Findings, f) && !strings.HasPrefix(f.Where, "role ") { // a role without tools is drafted so
			s.Findings = append(s.Findings, f)
		}
	}
	s.Call, err = s.callFirst(ctx, app.URL(a.Config().Listen, nil))
	stop()
	return errors.Join(err, <-ended, a.Close())
}

// callFirst calls a tool that only reads and needs no arguments as the new agent. Without
// one that answers among the first three, it lists the tools.
func (s *setup) callFirst(ctx context.Context, base string) (*firstCall, error) {
	as := *s.e
	as.Addr, as.Token = base, s.Tokens[0].Token
	a, err := as.Agent(ctx)
	if err != nil {
		return nil, err
	}
	defer a.Close()
	tried := 0
	for _, t := range slices.SortedStableFunc(slices.Values(s.Tools), func(a, b draftedTool) int { return strings.Compare(a.Role, b.Role) }) { // readers first
		if !t.reads || t.argument || tried == 3 {
			continue
		}
		tried++
		result, err := callTool(ctx, a, t.Name, json.RawMessage("{}"))
		if err == nil {
			err = verdictOf(result)
		}
		if err == nil {
			var said string
			said, err = contentText(result)
			return &firstCall{Tool: t.Name, Text: text.ClipRunes(said, 400)}, err
		}
		s.Notes = append(s.Notes, fmt.Sprintf("%s does not answer a call without arguments: %v", t.Name, err))
	}
	tools, err := listTools(ctx, a)
	return &firstCall{Tools: command.TextsOf(tools, func(t listedTool) string { return t.Name })}, err
}

// nextSteps returns the commands that follow.
func (s *setup) nextSteps() (commands []string) {
	program, flags := os.Args[0], s.e.ConfigFlag()
	call := "tool list"
	if s.Call != nil && s.Call.Tool != "" {
		call = "tool call " + s.Call.Tool
	}
	commands = append(commands, program+" serve"+flags, "TOOLGATE_TOKEN="+s.Tokens[0].Token+" "+program+" "+call+flags)
	adopted := map[string][]string{}
	for _, o := range s.taken() {
		client := o.Client
		if o.Scope == "project" {
			client += " --project " + clients.Workspace(o.File)
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

// plannedFile is one file that init writes, which must not exist yet.
type plannedFile struct {
	Path string // absolute once it is planned; before, with /, below the directory of init
	mode fs.FileMode
	data []byte
}

// MarshalText returns the path.
func (f plannedFile) MarshalText() ([]byte, error) { return []byte(f.Path), nil }

// plan makes the files, of which mcp.json is written last. The error is an *exit when one
// of them, or a directory of them, exists.
func (s *setup) plan() error {
	var entries []*offer
	for _, o := range s.taken() {
		written := *o
		written.entry.Server = s.secrets.Move(o.Name, o.entry.Server)
		entries = append(entries, &written)
	}
	tokens := []config.Token{}
	for _, t := range s.Tokens {
		tokens = append(tokens, t.Entry)
	}
	text, err := mcpText(entries, object{"state": ".toolgate", "policy": object{"path": "policy"}, "identity": object{"tokens": tokens}, "approvals": object{"require_person": true}})
	if err != nil {
		return err
	}
	files, err := policyFiles(s.Tools)
	if err != nil {
		return err
	}
	moved := 0
	for _, name := range slices.Sorted(maps.Keys(s.secrets.Values)) {
		if bytes.Contains(text, connect.Quoted(fmt.Sprintf(s.secrets.Form, name))) { // its server is taken
			files = append(files, plannedFile{"secrets/" + name, 0o600, []byte(s.secrets.Values[name] + "\n")})
			moved++
		}
	}
	if moved > 0 {
		files = append(files, plannedFile{"secrets/.gitignore", 0o600, []byte("*\n")})
	}
	if _, err := os.Lstat(filepath.Join(s.Dir, ".toolgate")); errors.Is(err, fs.ErrNotExist) { // the state of an earlier one stays
		files = append(files, plannedFile{".toolgate/.gitignore", 0o600, []byte("*\n")})
	}
	files = append(files, plannedFile{lock.Name, 0o644, s.lock.Bytes()}, plannedFile{command.DefaultConfig, 0o600, text})
	s.Files = nil
	for _, f := range files {
		top, _, _ := strings.Cut(f.Path, "/")
		if _, err := os.Lstat(filepath.Join(s.Dir, top)); !errors.Is(err, fs.ErrNotExist) {
			return command.Usage(fmt.Errorf("%s has a %s, and nothing is overwritten\nhint: toolgate init DIR writes to another directory; toolgate import adds servers to an mcp.json", s.Dir, top))
		}
		f.Path = filepath.Join(s.Dir, filepath.FromSlash(f.Path))
		s.Files = append(s.Files, f)
	}
	return nil
}

// mcpText returns mcp.json with the servers and the settings of toolgate.
func mcpText(servers []*offer, settings object) ([]byte, error) {
	entries, own := object{}, object{}
	for _, o := range servers {
		entries[o.Name] = o.entry.Server
		if o.entry.Settings != nil {
			own[o.Name] = o.entry.Settings
		}
	}
	if len(own) > 0 {
		settings["servers"] = own
	}
	return document(object{"mcpServers": entries, "toolgate": settings})
}

// object is a value of a document.
type object = map[string]any

// document returns a value as a JSON file.
func document(v any) ([]byte, error) {
	text, err := strict.Marshal(v, strict.Deterministic(true), jsontext.WithIndent("  "))
	return append(text, '\n'), err
}

// loadPlanned reads the configuration as if the planned files were on the disk.
func loadPlanned(e *command.Env, files []plannedFile) (*config.Config, error) {
	return config.Load(clients.Options(config.Options{Path: e.Config, Getenv: e.Lookup, State: e.State, Keys: e.Keys, ReadFile: func(path string) ([]byte, error) {
		if i := slices.IndexFunc(files, func(f plannedFile) bool { return f.Path == path }); i >= 0 {
			return files[i].data, nil
		}
		return config.ReadFile(path)
	}}))
}

// write makes every file, or none.
func (s *setup) write() (err error) {
	for i, f := range s.Files {
		if err = os.MkdirAll(filepath.Dir(f.Path), 0o700); err == nil {
			err = files.Create(f.Path, f.data, f.mode)
		}
		if err == nil {
			continue
		}
		for _, done := range slices.Backward(s.Files[:i]) {
			_ = os.Remove(done.Path)
			_ = os.Remove(filepath.Dir(done.Path)) // fails while it has others
		}
		return fmt.Errorf("writing %s: %w\nhint: nothing is left of what init wrote", f.Path, err)
	}
	s.Written = true
	return nil
}

// The roles that init drafts. An agent with the first two may call every tool.
const (
	roleReader   = "reader"   // tools that only read, and nothing outside their server
	roleWriter   = "writer"   // all other tools; a person decides on a call that may destroy
	roleApprover = "approver" // no tools: it decides on calls that are held
)

// draftedTool is a tool with its place in the drafted policy.
type draftedTool struct {
	Name        string          `json:"name"`                  // under which agents call it
	Annotations json.RawMessage `json:"annotations,omitempty"` // claims of its server
	Role        string          `json:"role"`
	Held        bool            `json:"held"` // a person decides on every call

	reads    bool // its server says that it changes nothing
	argument bool // it has a required argument
}

// draftTool finds the place of a tool. Annotations are what its server says, and nothing
// holds the server to them. What it does not say, or says in a form that has two readings,
// is what MCP takes for granted: the tool writes, may destroy and reaches the open world.
func draftTool(t policy.Tool, definition json.RawMessage) draftedTool {
	type claims struct {
		ReadOnly    *bool `json:"readOnlyHint"`
		Destructive *bool `json:"destructiveHint"`
		OpenWorld   *bool `json:"openWorldHint"`
	}
	var c claims
	if len(t.Annotations) > 0 && strict.Unmarshal(t.Annotations, &c) != nil {
		c = claims{}
	}
	is := func(claim *bool, otherwise bool) bool { return claim == nil && otherwise || claim != nil && *claim }
	d := draftedTool{Name: t.Exposed, Annotations: t.Annotations, Role: roleWriter, reads: is(c.ReadOnly, false) && !is(c.Destructive, false)}
	if d.reads && !is(c.OpenWorld, true) {
		d.Role = roleReader
	}
	d.Held = !d.reads && is(c.Destructive, true)
	var input struct{ InputSchema struct{ Required []string } }
	d.argument = json.Unmarshal(definition, &input) != nil || len(input.InputSchema.Required) > 0
	return d
}

// policyFiles returns the default policy with data that gives the drafted roles their
// tools, a decision table that says what each role may do with each tool, and a page that
// explains it.
func policyFiles(tools []draftedTool) (files []plannedFile, err error) {
	granted, held, cases := map[string]object{roleReader: {}, roleWriter: {}}, object{}, []object{}
	for _, t := range tools {
		effect := "allow"
		granted[t.Role][t.Name] = true
		if t.Held {
			effect = "hold"
			held[t.Name] = object{"hold": true}
		}
		for _, role := range []string{roleReader, roleWriter, roleApprover} {
			want := "deny"
			if role == t.Role {
				want = effect
			}
			cases = append(cases, object{"name": role + ": " + t.Name, "input": object{"principal": object{"roles": []string{role}}, "tool": object{"exposed": t.Name}}, "want": want})
		}
	}
	data, err := document(object{
		"roles": object{
			roleReader: object{"tools": granted[roleReader]}, roleWriter: object{"tools": granted[roleWriter]}, roleApprover: object{"tools": object{}},
		},
		"tools":    held,
		"approval": object{"roles": []string{roleApprover}, "quorum": 1},
		"trail":    object{"auditor": "all", roleApprover: "decides"},
	})
	table, failed := document(object{"cases": cases})
	files = []plannedFile{
		{"policy/README.md", 0o644, []byte(report.Of(tools, draftedPolicyText).Text(report.Table))},
		{"policy/data.json", 0o644, data}, {"policy/roles_test.json", 0o644, table},
	}
	rules, unread := policies.Bundled()
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if strings.HasSuffix(name, ".rego") && !strings.HasSuffix(name, "_test.rego") {
			files = append(files, plannedFile{"policy/" + name, 0o644, rules[name]})
		}
	}
	return files, errors.Join(err, failed, unread)
}
