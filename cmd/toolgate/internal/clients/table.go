// Package clients reads and writes the servers of other MCP clients: Claude Desktop, VS Code,
// Zed, Codex, Goose and the rest.
//
// What is known of them is data, the table clients.json: where a client's file is, in which
// format, under which keys, in which units, and what an entry for toolgate looks like in it.
// Read turns a client's file into toolgate's own form, and Options makes registry/config do
// the same with the file that it loads. Client.Export and Client.Entry write servers in the
// form of a client; package clientfile puts them into its file.
//
//	c, ok := clients.Lookup("cursor")
//	for _, p := range c.Places(clients.System("/src/project", os.LookupEnv)) {
//		fmt.Println(p.Scope, p.Path)
//	}
//
// Reading warns once of each thing that is read in another way. Filters of clients only narrow
// what is offered. The table is not changed after it is read, and everything here is safe for
// concurrent use. Callers must not change what they are given.
package clients

import (
	"cmp"
	_ "embed"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/tailscale/hujson"
)

// Client is one MCP client, or another source of servers, and its dialect.
type Client struct {
	ID        string      `json:"id"`        // lower case; what people write on the command line
	Name      string      `json:"name"`      // what people call it
	Format    string      `json:"format"`    // tree.JSON, tree.TOML or tree.YAML
	Files     []File      `json:"files"`     // where its file is; the first that fits is the one to write
	Container []string    `json:"container"` // keys that lead to the servers; empty = the file says how servers are installed
	Others    [][]string  `json:"others"`    // containers of its other versions
	List      string      `json:"list"`      // the servers are a list, and this member of each is its name; "" = they are an object
	Unit      string      `json:"unit"`      // of a bare number in timeout: "ms" or "s"; "" = it has none
	Longest   int64       `json:"longest"`   // most that it accepts in timeout, in Unit; 0 = no bound
	Expand    []Expansion `json:"expand"`    // texts that it expands in its own way
	Filters   []Filter    `json:"filters"`   // of the tools of all servers, outside of the entries
	Profiles  *Profiles   `json:"profiles"`  // nil = it has none that choose tools
	Write     *Write      `json:"write"`     // how it writes servers; nil = it calls none itself
	Connect   *Connect    `json:"connect"`   // how toolgate is entered; nil = it calls no servers itself

	Marks  [][]string `json:"marks"`
	Root   [][]string `json:"root"`
	Schema string     `json:"schema"`
}

// Filter is the place of a filter for the tools of all servers: a list of hidden tools,
// or an object of name ⇒ whether the tool is offered.
type Filter struct {
	Path []string `json:"path"` // keys that lead to it
	Name string   `json:"name"` // of a tool, with {server} and {tool} at the end
}

// Profiles says where a client has profiles that choose tools.
type Profiles struct {
	Path    []string `json:"path"`    // keys that lead to the profiles
	Members []string `json:"members"` // of a profile that chooses tools
}

var unusual = regexp.MustCompile(`[^A-Za-z0-9_-]`)

// Prefix returns what stands before a tool's own name in the names of a server's tools.
func (f Filter) Prefix(server string) string {
	before, _, _ := strings.Cut(f.Name, "{tool}")
	return strings.ReplaceAll(before, "{server}", unusual.ReplaceAllString(server, "_"))
}

// Key says what a key of another client means in a server's entry.
type Key struct {
	To   string `json:"to"`   // key of toolgate's form; "" = none says it
	Form string `json:"form"` // how the value differs, as the table says; "" = not at all
	Type string `json:"type"` // transport that the key implies; "" = none
	Why  string `json:"why"`  // consent, sign-in, startup or other, where To is ""
}

// Expansion rewrites what a client expands into toolgate's form.
type Expansion struct {
	Pattern *regexp.Regexp
	With    string // as in Regexp.ReplaceAllString
}

// UnmarshalJSON reads a list of pattern and replacement.
func (e *Expansion) UnmarshalJSON(text []byte) error {
	var pair [2]string
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	var err error
	e.Pattern, err = regexp.Compile(pair[0])
	e.With = pair[1]
	return err
}

// table is clients.json.
type table struct {
	Keys      map[string]Key       `json:"keys"`
	Why       map[string][2]string `json:"why"` // message and hint
	Launchers map[string][]string  `json:"launchers"`
	Admission []struct {
		Path   []string `json:"path"`
		Allows bool     `json:"allows"`
	} `json:"admission"`
	Types       map[string]string `json:"types"`
	Unsupported []string          `json:"unsupported"`
	Clients     []Client          `json:"clients"`
}

//go:embed clients.json
var clientsJSON []byte

var read = sync.OnceValue(func() table {
	var t table
	plain, err := hujson.Standardize(slices.Clone(clientsJSON))
	if err = cmp.Or(err, json.Unmarshal(plain, &t)); err != nil { // a test reads the table
		panic("reading the table of clients: " + err.Error())
	}
	return t
})

// Clients returns every client, in the order in which people look for them.
func Clients() []Client { return read().Clients }

// Lookup returns the client with an ID.
func Lookup(id string) (Client, bool) {
	i := slices.IndexFunc(Clients(), func(c Client) bool { return c.ID == id })
	if i < 0 {
		return Client{}, false
	}
	return Clients()[i], true
}

// Keys returns what the keys of other clients mean, by key.
func Keys() map[string]Key { return read().Keys }

// Types returns the words for a transport, by word: stdio, http, sse or ndjson.
func Types() map[string]string { return read().Types }

// Unsupported reports whether a word names a transport, or a scheme of addresses, that
// clients know and toolgate does not.
func Unsupported(word string) bool { return slices.Contains(read().Unsupported, word) }

// Containers returns every way to the servers of a file, longer ways first.
func Containers() (paths [][]string) {
	for _, c := range Clients() {
		for _, path := range append([][]string{c.Container}, c.Others...) {
			known := slices.ContainsFunc(paths, func(p []string) bool { return slices.Equal(p, path) })
			if len(path) > 0 && !known {
				paths = append(paths, path)
			}
		}
	}
	slices.SortStableFunc(paths, func(a, b []string) int { return len(b) - len(a) })
	return paths
}

// Shape is what a file shows of its clients.
type Shape struct {
	Path    string   // of the file; "" = not known
	Format  string   // tree.JSON, tree.TOML or tree.YAML
	Schema  string   // value of its $schema; "" = none
	Root    []string // its keys
	Entries []string // the keys of its servers' entries, and "type=word" for the words of their transports
}

// Recognise returns the client that writes such files. The name of the file takes
// precedence over its schema, and that over its keys; of several clients whose keys
// fit, the one with the most of them is meant. False means that nothing, or as much
// for one client as for another, speaks for one.
func Recognise(s Shape) (Client, bool) {
	best, most, tie := Client{}, 0, false
	for _, c := range Clients() {
		score := byEntry*longest(c.Marks, s.Entries) + byRoot*longest(c.Root, s.Root)
		// A file may be converted to another format, and then only its keys tell.
		if c.Format == s.Format && slices.ContainsFunc(c.Files, func(f File) bool { return f.names(s.Path) }) {
			score += byName
		}
		if c.Schema != "" && strings.HasPrefix(s.Schema, c.Schema) {
			score += bySchema
		}
		switch {
		case score > most:
			best, most, tie = c, score, false
		case score == most:
			tie = true
		}
	}
	if most == 0 || tie && most < byName {
		return Client{}, false
	}
	return best, true
}

// What speaks for a client, in the order of precedence.
const (
	byName   = 10_000
	bySchema = 1000
	byEntry  = 10
	byRoot   = 1
)

// longest returns the length of the longest set whose members are all in found.
func longest(sets [][]string, found []string) (most int) {
	for _, set := range sets {
		if !slices.ContainsFunc(set, func(key string) bool { return !slices.Contains(found, key) }) {
			most = max(most, len(set))
		}
	}
	return most
}
