package config

import (
	"strings"
	"sync"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/tree"
)

// read returns the published schema with a name, at a pointer. A process that serves reads few files, so
// nothing keeps most of them.
func read(name, pointer string, formats map[string]func(string) error) *schema.Own {
	own, err := schema.ReadOwn(schemas.Read(name), pointer, formats)
	if err != nil { // a test compiles it
		panic("reading the embedded schema: " + err.Error())
	}
	return own
}

// entrySchema is the published schema of servers, for texts that are not expanded: a
// format says nothing about a text with a variable in it.
var entrySchema = sync.OnceValue(func() *schema.Own {
	unexpanded := make(map[string]func(string) error, len(formats))
	for name, check := range formats {
		unexpanded[name] = func(s string) error { return unless(strings.Contains(s, "${"), check, s) }
	}
	return read("config.json", "/$defs/servers", unexpanded)
})

// CheckServers reports what the published schema says against servers in toolgate's own form,
// whose variables are not expanded.
func CheckServers(servers *tree.Node, r *tree.Report) { r.Check(servers, entrySchema()) }
