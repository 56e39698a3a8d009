package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/connect"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/registry/config"
)

// offer is one server of a client's file, as init offers it.
type offer struct {
	Name   string `json:"name"`
	Client string `json:"client"`
	Scope  string `json:"scope,omitempty"` // of the file: user, project or system
	File   string `json:"file,omitempty"`
	Target string `json:"target"` // its command with arguments, secrets masked, or its host
	Taken  bool   `json:"taken"`
	Reason string `json:"reason,omitempty"` // why it is not taken unless a person chooses it, or cannot be

	able   bool // it can be chosen
	entry  clients.Entry
	inputs []clients.Input // to which the entry refers
}

// standardTools is the server that init offers where there is no other.
func standardTools() *offer {
	return &offer{Name: "standard", Client: "toolgate", Target: "toolgate tools", Taken: true, entry: clients.Entry{
		Server:   json.RawMessage(`{"command": "toolgate", "args": ["tools"]}`),
		Settings: json.RawMessage(`{"prefix": "", "risk": "high", "isolation": "shared", "revision": "2026-07-28", "notice": "a demonstration: documents, pictures and money are not real"}`),
	}}
}

// offers returns the servers in the clients' files of this machine, and notes on what is
// left out or read in another form. Those that can run are taken. A project's files may
// come from others and name any command, so their servers are taken only where the person
// names the project.
func offers(e *command.Env, f *initFlags) (offers []*offer, notes []string, err error) {
	for _, id := range f.clients {
		if _, err := connect.LookupClient(id); err != nil {
			return nil, nil, err
		}
	}
	files, err := connect.ClientFiles(e, cmp.Or(f.project, "."))
	if err != nil {
		return nil, nil, err
	}
	// A project's server takes no name from one of the user's: user, system, project.
	slices.SortStableFunc(files, func(a, b connect.ClientOnDisk) int { return strings.Compare(b.Scope, a.Scope) })
	for _, file := range files {
		switch {
		case len(f.clients) > 0 && !slices.Contains(f.clients, file.ID):
		case file.Err != nil:
			fault, _, _ := strings.Cut(file.Err.Error(), "\n")
			notes = append(notes, fault)
		default:
			for _, n := range file.Read.Notes {
				if n.Hint != "" { // what is only read in another form needs nothing
					notes = append(notes, n.String())
				}
			}
			for _, s := range file.Read.Servers {
				origin := originOf(s.Server)
				o := &offer{Name: s.Name, Client: file.ID, Scope: file.Scope, File: file.Path, Target: origin.String(), entry: s}
				if u, err := url.Parse(origin.URL); err == nil && u.Host != "" {
					o.Target = u.Host
				}
				for _, in := range file.Read.Inputs {
					if bytes.Contains(s.Server, connect.Quoted(in.Reference)) {
						o.inputs = append(o.inputs, in)
					}
				}
				o.Reason = obstacle(e, o, offers)
				if o.able = o.Reason == ""; o.able && file.Scope == "project" && f.project == "" {
					o.Reason = "it is in a file of this project: choose it, or name the project with --project"
				}
				o.Taken = o.Reason == ""
				offers = append(offers, o)
			}
		}
	}
	if len(f.clients) > 0 && len(offers) == 0 {
		return nil, nil, command.Usage(fmt.Errorf("no file of %s on this machine has servers\nhint: toolgate import lists the files that are here", strings.Join(f.clients, ", ")))
	}
	return offers, notes, nil
}

// obstacle returns why a server cannot be taken beside earlier ones, "" if it can.
func obstacle(e *command.Env, new *offer, earlier []*offer) string {
	s, own := new.entry, connect.OwnServers{URL: "http://127.0.0.1:8787/mcp"} // the default of a new mcp.json
	if s.Name == "toolgate" || own.IsToolgate(s.Server) {
		return "it is toolgate itself"
	}
	if s.Disabled {
		return "it is disabled"
	}
	for _, o := range earlier {
		switch {
		case !o.able || !strings.EqualFold(o.Name, s.Name):
		case connect.SameFilled(o.entry.Server, s.Server, nil):
			return "it is the same in " + o.Client
		default:
			return "another server has its name in " + o.Client + ": import it later, with --as NAME"
		}
	}
	if len(new.inputs) > 0 {
		return "" // its values are not known yet
	}
	text, err := mcpText([]*offer{new}, object{})
	if err != nil {
		return err.Error()
	}
	cfg, err := loadPlanned(e, []plannedFile{{Path: e.Config, data: text}})
	if err != nil {
		return command.FaultsOf(err, "")[0].Message
	}
	if len(cfg.Servers) == 0 {
		return "its transport is not supported"
	}
	return missingCommand(&cfg.Servers[0])
}

// missingCommand says that the command of a server is not found, "" if it is or there is
// none.
func missingCommand(s *config.Server) string {
	if s.Disabled || s.Command == "" || s.Command == "toolgate" {
		return ""
	}
	if _, err := exec.LookPath(s.Command); err != nil {
		return fmt.Sprintf("command %q is not found", s.Command)
	}
	return ""
}

// fillOffers gives values to the inputs of the servers that are taken. A server that lacks
// one is not taken.
func fillOffers(e *command.Env, s *setup, f *initFlags) error {
	var inputs []clients.Input
	for _, o := range s.Servers {
		inputs = append(inputs, o.inputs...)
	}
	given, err := connect.GivenValues(inputs, f.set)
	if err != nil {
		return command.Usage(err)
	}
	for _, o := range s.taken() {
		_, missing, err := connect.FillInputs(e, o.inputs, []*clients.Entry{&o.entry}, s.secrets, given, !f.yes)
		if err != nil {
			return command.Usage(err)
		}
		o.Taken, o.Reason = missing == "", missing
	}
	return nil
}

// choose asks which servers to take until the answer names some, and reports whether there
// was an answer.
func choose(e *command.Env, offers []*offer) bool {
	for {
		answer, ok := e.Prompt("servers to take (Enter: those with *; or numbers such as 1,3; or none): ")
		switch {
		case !ok:
			return false
		case answer == "":
			return true
		}
		chosen, err := chosenOf(offers, answer)
		if err != nil {
			fmt.Fprintln(e.Stderr, err)
			continue
		}
		for _, o := range offers {
			if o.Taken = slices.Contains(chosen, o); o.Taken {
				o.Reason = ""
			}
		}
		return true
	}
}

// chosenOf returns the offers that an answer names.
func chosenOf(offers []*offer, answer string) (chosen []*offer, err error) {
	if strings.EqualFold(answer, "none") {
		return nil, nil
	}
	for _, word := range strings.FieldsFunc(answer, func(r rune) bool { return r == ',' || r == ' ' }) {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 || n > len(offers) {
			return nil, fmt.Errorf("%q is no number from 1 to %d", word, len(offers))
		}
		o := offers[n-1]
		if !o.able {
			return nil, fmt.Errorf("%s cannot be taken: %s", o.Name, o.Reason)
		}
		chosen = append(chosen, o)
	}
	return chosen, nil
}
