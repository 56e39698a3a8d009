// Package bundle holds the default policy: Rego that says how calls are judged, and
// data that says who may do what. It is embedded in the binary and serves when no
// policy is configured.
//
// toolgate.rego has the rules, lib the conditions, which other policies may import.
// Operators who want other rights write the files into a directory of their own
// (toolgate policy init) and edit data.json: rights are data.roles[role].tools,
// keyed by the name under which agents call a tool.
package bundle

import "embed"

// Files is the default policy: Rego with its library and tests, and data.json.
//
//go:embed *.rego data.json lib/*.rego
var Files embed.FS

// Workflow is a GitHub workflow that checks changes of a copy of the policy.
//
//go:embed workflow.yml
var Workflow []byte
