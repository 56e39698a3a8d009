package guardian

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The environment variables in which toolgate tells a guardian who it is outside
// its user namespace, where it cannot ask.
const (
	uidName = "TOOLGATE_UID"
	gidName = "TOOLGATE_GID"
)

// Identity returns the environment that a guardian needs besides its server's.
func Identity() []string {
	return []string{uidName + "=" + strconv.Itoa(os.Getuid()), gidName + "=" + strconv.Itoa(os.Getgid())}
}

// Owns reports whether the environment variable name is the guardian's, not the
// server's.
func Owns(name string) bool { return name == uidName || name == gidName }

// Inside reports whether this process was started as a guardian. One that does not
// call Main has gone astray, and must not start servers: it would start itself for ever.
func Inside() bool { return os.Getenv(uidName) != "" }

// The times that a server has to end, one after the other.
const (
	StdinGrace = 1500 * time.Millisecond // from the end of stdin to TERM
	TermGrace  = 1500 * time.Millisecond // from TERM to KILL
)

// An Order says how a guardian confines a server. The zero Order confines nothing.
type Order struct {
	// Namespaces says that the guardian was cloned into a user and a mount
	// namespace of its own. Hide, Keep and ReadOnly need it.
	Namespaces bool
	// PIDs says that the guardian was also cloned into a PID namespace of its own, as the
	// first process, which no other process of the namespace can stop or kill. It needs
	// Namespaces.
	PIDs bool
	// Hide are absolute paths of directories and files that the server cannot see:
	// a directory is empty and read-only, a file is /dev/null. Missing paths
	// are left out.
	Hide []string
	// Keep are directories below hidden ones that the server sees all the same.
	Keep []string
	// ReadOnly are files that the server cannot change.
	ReadOnly []string
	// Files says that Landlock hides the paths of Hide instead of a namespace. ReadOnly
	// needs a namespace.
	Files bool
	// Scopes says that a Landlock domain keeps the server from signalling
	// processes and connecting to abstract sockets outside the domain.
	Scopes bool
	// Filter says that a seccomp filter refuses the system calls that reach into
	// other processes, terminals and key rings, and that no program gains privileges.
	Filter bool
	// Group says that the server enters the control group whose files the guardian has as
	// GroupFD and KillFD.
	Group bool
	// Limits are resource limits by the name of setrlimit(2) in lower case, without
	// its prefix: "nofile", "nproc", "as".
	Limits map[string]uint64
	// Try says that the guardian starts no server: it confines a process that does nothing
	// and exits with 0, or says what the kernel refused and exits with another code.
	Try bool
}

// Args returns the command line of a guardian for o and a server's command.
func (o *Order) Args(command []string) []string {
	var out []string
	for name, on := range map[string]bool{"namespaces": o.Namespaces, "pids": o.PIDs, "scopes": o.Scopes, "files": o.Files, "group": o.Group, "filter": o.Filter, "try": o.Try} {
		if on {
			out = append(out, "--"+name)
		}
	}
	for name, paths := range map[string][]string{"hide": o.Hide, "keep": o.Keep, "readonly": o.ReadOnly} {
		for _, path := range paths {
			out = append(out, "--"+name+"="+path)
		}
	}
	for name, most := range o.Limits {
		out = append(out, fmt.Sprintf("--limit=%s=%d", name, most))
	}
	slices.SortStableFunc(out, func(a, b string) int { return strings.Compare(flagName(a), flagName(b)) })
	return append(append(out, "--"), command...)
}

// flagName returns the part of a flag that Args sorts by: order within one flag
// is the caller's.
func flagName(arg string) string {
	name, _, _ := strings.Cut(arg, "=")
	return name
}

// Parse returns the Order and the server's command that Args made args from.
func Parse(args []string) (*Order, []string, error) {
	o := &Order{Limits: make(map[string]uint64)}
	set := flag.NewFlagSet("guardian", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	set.BoolVar(&o.Namespaces, "namespaces", false, "")
	set.BoolVar(&o.PIDs, "pids", false, "")
	set.BoolVar(&o.Files, "files", false, "")
	set.BoolVar(&o.Scopes, "scopes", false, "")
	set.BoolVar(&o.Group, "group", false, "")
	set.BoolVar(&o.Filter, "filter", false, "")
	set.BoolVar(&o.Try, "try", false, "")
	for name, list := range map[string]*[]string{"hide": &o.Hide, "keep": &o.Keep, "readonly": &o.ReadOnly} {
		set.Func(name, "", func(path string) error {
			*list = append(*list, path)
			return nil
		})
	}
	set.Func("limit", "", func(text string) error {
		name, number, _ := strings.Cut(text, "=")
		if _, ok := resources[name]; !ok {
			return fmt.Errorf("no resource limit %q", name)
		}
		most, err := strconv.ParseUint(number, 10, 64)
		o.Limits[name] = most
		return err
	})
	if err := set.Parse(args); err != nil {
		return nil, nil, err
	}
	if set.NArg() == 0 && !o.Try {
		return nil, nil, fmt.Errorf("no command")
	}
	return o, set.Args(), nil
}
