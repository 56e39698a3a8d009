package sandbox

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"sync/atomic"
)

// A Mode says what happens when the kernel cannot confine a server wholly.
type Mode string

// The modes. The zero Mode is Auto.
const (
	Auto    Mode = "auto"    // the server starts, confined as far as possible
	Require Mode = "require" // the server does not start
	Off     Mode = "off"     // the server is not confined
)

// Options are what a Host needs to know. The zero Options hide nothing.
type Options struct {
	Hide       []string // absolute paths of directories and files that no server sees
	Keep       []string // directories below hidden ones that servers see all the same
	ReadOnly   []string // absolute paths of files that no server can change
	Cgroups    string   // where the file system of control groups is; "" = /sys/fs/cgroup
	Executable string   // this program, in case that no guardian is embedded; "" = os.Executable
}

// A Server is a stdio server to be started.
type Server struct {
	Path      string // absolute
	Args      []string
	Mode      Mode
	NoNetwork bool              // the server has an empty network namespace
	User      string            // name or number of the user to run as; "" = toolgate's own
	Limits    map[string]uint64 // resource limits by their names in setrlimit(2), lower case, without prefix
	Resources Resources         // what Limits names takes precedence
}

// Resources bound what a server uses together with all that it starts; file sizes and open
// files, each process. 0 = not limited.
type Resources struct {
	Memory    uint64 // bytes
	Processes uint64 // with their threads
	CPUWeight uint64 // 1 to 10,000, against 100 of other control groups
	FileSize  uint64 // bytes
	Files     uint64 // open at once
}

// Support says how servers can be confined here.
type Support struct {
	Namespaces bool // servers have their own view of files
	PIDs       bool // servers have their own processes only, in a PID namespace
	Files      bool // in place of namespaces, Landlock hides files
	Scopes     bool // signals, abstract sockets and tracing stay inside
	Filter     bool // no new privileges, and a seccomp filter
	// Missing says in words what is not there and why; "" = nothing.
	Missing string
}

// Whole reports whether servers can be confined in every way.
func (s Support) Whole() bool { return s.Namespaces && s.Scopes && s.Filter }

// ErrUnsupported reports that a server cannot be confined as it has to be.
var ErrUnsupported = errors.New("this system cannot confine the server")

// A Host starts servers. It is safe for concurrent use.
type Host struct {
	options atomic.Pointer[Options]
	support func() Support // tries guardians on its first call
	groups  func() (dir string, err error)
	program program
}

// New returns a Host. It starts nothing yet.
func New(opts Options) *Host {
	h := new(Host)
	h.options.Store(&opts)
	h.support = sync.OnceValue(h.try)
	h.groups = sync.OnceValues(h.findGroups)
	return h
}

// Apply replaces the options for servers that start from now on.
func (h *Host) Apply(opts Options) { h.options.Store(&opts) }

// Support returns how servers can be confined here. The first call starts guardians
// to find out, which takes some milliseconds.
func (h *Host) Support() Support { return h.support() }

// Confinement says in words how s is confined: off, whole, as a user, or in part, with
// what is missing.
func (h *Host) Confinement(s Server) string {
	switch {
	case s.Mode == Off:
		return string(Off)
	case s.User != "":
		return "user " + s.User
	case h.Support().Whole():
		return "whole"
	}
	return "in part: " + h.Support().Missing
}

// Unlimited returns the names of the resources of s that cannot be limited here, and why.
func (h *Host) Unlimited(s Server) (names []string, why error) {
	_, why = h.groups()
	if why == nil {
		return nil, nil
	}
	if s.Resources.Memory > 0 {
		names = append(names, "memory")
	}
	if _, given := s.Limits["nproc"]; s.Resources.Processes > 0 && !given && !h.countsAlone(s) {
		names = append(names, "processes")
	}
	if s.Resources.CPUWeight > 0 {
		names = append(names, "cpu_weight")
	}
	if !limitsProcess {
		names = append(names, "file_size", "files")
	}
	return names, why
}

// Command returns a command that runs s under a guardian, and the guardian's leash:
// when it is closed, by the caller or because the caller died, the server and
// everything that it started ends. The caller sets streams, directory, and adds the
// server's environment to the command's; it calls Started after cmd.Start, and Ended when
// the process has ended. The error is ErrUnsupported when s requires what the kernel refuses.
func (h *Host) Command(s Server) (cmd *exec.Cmd, leash io.Closer, err error) {
	if s.Mode == Require && !h.Support().Whole() {
		return nil, nil, fmt.Errorf("%w: %s\nhint: set sandbox to \"auto\", or allow what is missing", ErrUnsupported, h.Support().Missing)
	}
	return h.command(s)
}
