package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/upstream"
)

var (
	// ErrClosed is returned by Apply after Close.
	ErrClosed = errors.New("the registry is closed")
	// ErrNoServer is returned by Restart for a server that is not configured, or disabled.
	ErrNoServer = errors.New("no server of this name is running")
)

// validName reports whether a tool may be called name (MCP server/tools, "Tool names").
func validName(name string) bool { return len(name) <= 128 && nameForm.MatchString(name) }

var nameForm = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// discover makes tools from the definitions that a server listed, each judged
// on its own: a bad one is quarantined with a reason, its neighbours serve. The
// warnings are for the operator.
func (r *Registry) discover(e *entry) (tools []*Tool, warnings []string) {
	cfg, definitions := e.cfg, e.listed.Tools
	seen := make(map[string]bool, len(definitions))
	add := func(i int, definition json.RawMessage) *Tool {
		name, ok := upstream.NameOf(definition)
		if !ok {
			name = "#" + strconv.Itoa(i)
		}
		tools = append(tools, r.tool(cfg, name, definition))
		return tools[len(tools)-1]
	}
	for i, definition := range definitions {
		t := add(i, definition)
		if t.Quarantine == "" && seen[t.Name] {
			t.Quarantine = "the server offers two tools of this name"
		}
		seen[t.Name] = true
	}
	for i, own := range e.listed.Own {
		t := add(len(definitions)+i, own.Definition)
		t.own, t.listedBy, t.live, t.unproven = true, own.Condition, own.Live, own.Unproven
		seen[t.Name] = true
	}
	tools = r.pin(e, tools)
	tools = slices.DeleteFunc(tools, func(t *Tool) bool { return !cfg.Offers(t.Name) })
	for _, t := range tools {
		if t.warning != "" {
			warnings = append(warnings, fmt.Sprintf("tool %s: %s", t.Name, t.warning))
		}
		if t.unseen != nil {
			warnings = append(warnings, fmt.Sprintf("tool %s: its definition has hidden characters: %s", t.Name, strings.Join(t.unseen, ", ")))
		}
	}
	if definitions != nil {
		for _, name := range cfg.Expose {
			if !seen[name] && !strings.ContainsAny(name, "*?") {
				warnings = append(warnings, fmt.Sprintf("expose names %q, which the server does not offer", name))
			}
		}
	}
	return tools, warnings
}

// tool makes one tool. It never fails: what is wrong with the definition
// becomes the reason of its quarantine.
func (r *Registry) tool(cfg config.Server, name string, definition json.RawMessage) *Tool {
	t := &Tool{
		Server: cfg.Name, Name: name, Exposed: cfg.Prefix + name,
		Definition: definition, source: definition, Fingerprint: upstream.Fingerprint(definition), Form: upstream.Form(definition),
		Risk: cfg.Risk, InputMode: cfg.InputSchema, OutputMode: cfg.OutputSchema, AllowVariants: cfg.CaseVariants == "allow",
		Timeout: cfg.Timeout, MaxTimeout: cfg.MaxTimeout, Notice: cfg.Notice, EscapeHidden: cfg.HiddenText == "escape", AsConfigured: cfg.Credential == nil, unseen: text.HiddenKinds(definition),
	}
	if err := r.complete(t); err != nil {
		t.Quarantine = err.Error()
	} else if _, err := paramheader.Parameters(definition); err != nil && cfg.Type == config.TypeHTTP {
		t.Quarantine = err.Error()
	}
	if !validName(name) {
		// Names go to logs and terminals: only those that can do no harm there.
		t.Name = harmless(name)
		t.Exposed = cfg.Prefix + t.Name
	}
	return t
}

// shownBytes is how much of a server's word a message shows.
const shownBytes = 128

// withLargeOutput returns the definition with its outputSchema, if nothing is found wrong
// with that but its size.
func withLargeOutput(t *Tool) (whole json.RawMessage, ok bool) {
	output, _ := jsonrpc.Get(t.source, "outputSchema")
	if len(output) <= schema.MaxBytes || output[0] != '{' {
		return nil, false
	}
	whole, variants, err := jsonrpc.CheckValue(t.source, jsonrpc.DefaultLimits())
	return whole, err == nil && (variants == nil || t.AllowVariants)
}

// complete fills in what the definition says. The error says what is wrong with
// it. An outputSchema that cannot be used is left out, with a warning, unless
// results have to match it. One that is only too large is passed on.
func (r *Registry) complete(t *Tool) error {
	body, err := jsonrpc.Delete(t.source, "outputSchema")
	if err != nil {
		body = t.source // which CheckValue refuses
	}
	body, variants, err := jsonrpc.CheckValue(body, jsonrpc.DefaultLimits())
	switch {
	case err != nil:
		return fmt.Errorf("reading its definition: %w", err)
	case variants != nil && !t.AllowVariants:
		return fmt.Errorf("its definition has the keys %q and %q at %q, which differ only in case\nhint: set case_variants to allow for this server if that is meant", variants.First, variants.Second, variants.Pointer)
	case !validName(t.Name):
		return fmt.Errorf("its name %s is not 1 to 128 of letters, digits, \"_\", \".\" and \"-\"", strconv.QuoteToASCII(text.Clip(t.Name, shownBytes, "...")))
	case !validName(t.Exposed):
		return fmt.Errorf("its exposed name is longer than 128 characters\nhint: give the server a shorter prefix")
	}
	io, err := r.schemas.LoadToolIO(t.Exposed, t)
	if err != nil {
		return err
	}
	if t.Input, t.Output = io.input, io.output; io.unusable != nil {
		why := fmt.Sprintf("its outputSchema is refused: %v", io.unusable)
		if t.OutputMode == "enforce" {
			return errors.New(why + "\nhint: output_schema is enforce for this server, and results cannot be held to such a schema")
		}
		t.Definition, t.warning = body, why+": the tool is served without it"
		if whole, ok := withLargeOutput(t); ok {
			t.Definition, t.warning = whole, why+": it is passed on, and results are not held to it"
		}
	}
	if t.EscapeHidden && t.unseen != nil {
		t.Definition = jsonrpc.MapTexts(t.Definition, text.EscapeHidden)
	}
	t.Annotations, _ = jsonrpc.Get(t.Definition, "annotations")
	if t.Listed, err = jsonrpc.Set(t.Definition, "name", jsonrpc.Quote(t.Exposed)); err != nil {
		return fmt.Errorf("renaming it: %w", err)
	}
	return nil
}

// harmless replaces every character of a name that a valid name cannot have.
func harmless(name string) string {
	return strings.Map(func(c rune) rune {
		if c < 0x80 && (validName(string(c)) || c == '#') {
			return c
		}
		return '?'
	}, text.Clip(name, shownBytes, "..."))
}
