package console

import _ "embed"

// The scripts of the pages. The first two are as their makers publish them, see
// docs/evidence/dependencies.md; the policy of every page forbids them to evaluate text.
var (
	//go:embed assets/htmx-4.0.1.min.js
	htmxScript []byte
	//go:embed assets/hx-sse-4.0.1.min.js
	sseScript []byte
	//go:embed console.js
	ownScript []byte
)
