package config

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Server returns the server with a name, nil when there is none. The caller must not change it.
func (c *Config) Server(name string) *Server {
	for i := range c.Servers {
		if c.Servers[i].Name == name {
			return &c.Servers[i]
		}
	}
	return nil
}

// Offers reports whether agents may be shown a tool of the server, by its upstream name.
// The filters only narrow: a tool is in every list of what is offered, and in none of
// what is not.
func (s Server) Offers(tool string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(list, func(pattern string) bool { return Fits(pattern, tool) })
	}
	return (s.Expose == nil || in(s.Expose)) && (s.Only == nil || in(s.Only)) && !in(s.Exclude)
}

// CommandHint says what to do about a Command that is not found.
func (s Server) CommandHint() string {
	words := strings.Fields(s.Command)
	if len(words) < 2 {
		return "install it, or give its full path"
	}
	// Strings cannot fail to encode.
	rest, _ := json.Marshal(words[1:])
	return fmt.Sprintf(`write "command": %q, "args": %s, followed by the other arguments`, words[0], rest)
}

// Identity is a hash of what makes s the same upstream: how it is reached and
// how its connections are kept, not how its tools are named, judged or timed.
// Two servers with one Identity can share a connection, so a reload keeps it.
func (s Server) Identity() string {
	// Maps are encoded with sorted keys; strings cannot fail to encode.
	data, _ := json.Marshal([]any{s.Type, s.Command, s.Args, s.Env, s.Dir, s.URL, s.Headers, s.Isolation, s.MaxSessions, s.Spare, s.Revision, s.ClientInfo, s.Sandbox, s.User, s.Network, s.RLimits, s.Resources, s.SecretNames, s.MaxMessage, s.MaxDepth, s.Credential, s.TLS})
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// escape keeps path.Match to * and ?, and lets * stand for slashes too.
var escape = strings.NewReplacer("/", "\x00", `\`, `\\`, "[", `\[`)

// Fits reports whether the name of a tool, or an address, fits a pattern, in which * stands
// for anything and ? for one character.
func Fits(pattern, text string) bool {
	ok, err := path.Match(escape.Replace(pattern), strings.ReplaceAll(text, "/", "\x00"))
	return ok && err == nil
}
