package clients

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// File is one place of a client's file, as the table writes it.
type File struct {
	OS    string `json:"os"`    // as runtime.GOOS; "" = every system
	Scope string `json:"scope"` // user, project or system
	Path  string `json:"path"`  // with ~ and ${VAR:-default}; of scope project relative to the project
}

// Place is where a client's file is on one machine, whether it exists or not.
type Place struct {
	Scope string // user, project or system
	Path  string // absolute
}

// Machine is what places depend on.
type Machine struct {
	OS      string // as runtime.GOOS
	Home    string // home directory of the user; "" = no place below it is returned
	Project string // directory of the project; "" = no place of scope project is returned
	Getenv  func(string) (string, bool)
}

// System returns this machine, for a project directory and the variables of a process.
func System(project string, getenv func(string) (string, bool)) Machine {
	if project != "" {
		project, _ = filepath.Abs(project) // "" = no project
	}
	home, _ := os.UserHomeDir() // "" = a user without one has no files there
	return Machine{OS: runtime.GOOS, Home: home, Project: project, Getenv: getenv}
}

// Places returns the places of the client's file, in the order of the table.
func (c Client) Places(m Machine) (places []Place) {
	for _, f := range c.Files {
		path := f.Path
		switch {
		case f.OS != "" && f.OS != m.OS:
			continue
		case f.Scope == "project" && m.Project == "":
			continue
		case f.Scope == "project":
			path = filepath.Join(m.Project, filepath.FromSlash(path))
		default:
			path = m.expand(path)
		}
		if filepath.IsAbs(path) {
			places = append(places, Place{Scope: f.Scope, Path: path})
		}
	}
	return places
}

// leading is the part of a path that depends on the machine.
var leading = regexp.MustCompile(`^(?:\$\{([A-Z_]+):-([^}]*)\}|~)/`)

// expand returns a path of the table on m.
func (m Machine) expand(path string) string {
	found := leading.FindStringSubmatch(path)
	if found == nil {
		return filepath.FromSlash(path)
	}
	rest := path[len(found[0]):]
	if found[1] == "" {
		if m.Home == "" {
			return ""
		}
		return filepath.Join(m.Home, filepath.FromSlash(rest))
	}
	base, _ := m.Getenv(found[1]) // "" = not set
	if !filepath.IsAbs(base) {
		base = m.expand(found[2] + "/")
	}
	return filepath.Join(base, filepath.FromSlash(rest))
}

// names reports whether a file of this path is the client's by its name. A name that
// many programs use says nothing.
func (f File) names(path string) bool {
	tail := leading.ReplaceAllString(f.Path, "") // the same on every machine
	if from := leading.FindStringSubmatch(f.Path); from != nil && strings.HasPrefix(from[2], "~/.") && !strings.Contains(tail, "/") {
		tail = strings.TrimPrefix(from[2], "~/") + "/" + tail // .codex/config.toml
	}
	tail = strings.TrimPrefix(tail, "/")
	if path == "" || !strings.Contains(tail, "/") && (tail == "mcp.json" || tail == "settings.json" || tail == "config.yaml") {
		return false
	}
	path = filepath.ToSlash(path)
	return path == tail || strings.HasSuffix(path, "/"+tail)
}

// Workspace returns the directory that a file's ${workspaceFolder} stands for: its own,
// or the project's when the file is where a client keeps that of a project.
func Workspace(path string) string {
	slashed := filepath.ToSlash(path)
	for _, c := range Clients() {
		for _, f := range c.Files {
			if dir, ok := strings.CutSuffix(slashed, "/"+f.Path); ok && f.Scope == "project" && strings.Contains(f.Path, "/") {
				return filepath.FromSlash(dir)
			}
		}
	}
	return filepath.Dir(path)
}
