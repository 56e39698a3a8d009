// Package bundle holds the default policy: Rego that says how calls are judged
// and data that says to whom and how much. It is embedded in the binary and
// serves when no policy is configured. An operator who wants other rights
// copies the files and edits data.json: rights are data.roles[role].tools,
// keyed by the name under which agents call a tool. toolgate.rego has the rules
// in their order, lib the conditions, which other policies may import.
package bundle

import "embed"

// Files is the default policy: Rego with its library and tests, and data.json.
//
//go:embed *.rego data.json lib/*.rego
var Files embed.FS
