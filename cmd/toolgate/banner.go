package main

import (
	"fmt"
	"os"
	"strings"
)

// banner tells people where to go: where agents connect, where people look,
// which demo tokens are configured, and a first call to paste. moved says that
// the agents' address is not the one that the configuration names.
func (e *env) banner(in *instance, agents, people string, moved bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "toolgate %s\n\n", version)
	fmt.Fprintf(&b, "  agents connect   http://%s/mcp   (one server: /mcp/{server})\n", agents)
	fmt.Fprintf(&b, "  programs call    http://%s/v1/jobs   (described at /v1/openapi.json)\n", agents)
	fmt.Fprintf(&b, "  people look      http://%s/console/   (health: /readyz)\n", people)
	fmt.Fprintf(&b, "  policy           %s\n  state            %s\n", short(in.revision()), in.cfg.State)
	known := 0
	for _, t := range in.cfg.Identity.Tokens {
		if d := demo(t); d != "" {
			if known++; known == 1 {
				fmt.Fprintf(&b, "\n  demo tokens, known to everybody:\n")
			}
			fmt.Fprintf(&b, "    %-18s %s\n", d, strings.Join(t.Roles, ", "))
		}
	}
	if known == len(demos) {
		fmt.Fprintf(&b, "\n  a first call:\n    %s tool call search_internet --args '{\"query\":\"model context protocol\"}' --token demo-researcher%s\n",
			os.Args[0], e.whereabouts(agents, moved))
	}
	fmt.Fprintln(e.out, b.String())
}

// whereabouts gives the flags by which a command finds this toolgate.
func (e *env) whereabouts(agents string, moved bool) string {
	switch {
	case moved:
		return " --addr http://" + reachable(agents)
	case e.config != defaultConfig:
		return " --config " + e.config
	}
	return ""
}
