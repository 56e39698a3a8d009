package sandbox

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/guardian"
)

// namespaceCaps are the capabilities that a guardian keeps in its user namespace
// until its server starts. They are ambient because the guardian has no identity
// map yet when it is executed (user_namespaces(7)).
var namespaceCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETPCAP}

// try starts guardians without a server, from the most confined form to the least.
func (h *Host) try() Support {
	var missing []string
	for _, s := range []Support{
		{Namespaces: true, PIDs: true, Scopes: true, Filter: true},
		{Namespaces: true, Scopes: true, Filter: true},
		{Namespaces: true, PIDs: true, Filter: true},
		{Namespaces: true, Filter: true},
		{Files: len(h.options.Load().Hide) > 0, Scopes: true, Filter: true},
		{Scopes: true, Filter: true},
		{Filter: true},
	} {
		order := h.order(s)
		order.Try = true
		err := h.attempt(order)
		if err == nil {
			s.Missing = strings.Join(missing, "; ")
			return s
		}
		if text := err.Error(); len(missing) == 0 || missing[len(missing)-1] != text {
			missing = append(missing, text)
		}
	}
	return Support{Missing: strings.Join(missing, "; ")}
}

// attempt runs a guardian that starts no server.
func (h *Host) attempt(order guardian.Order) error {
	cmd, leash, err := h.guardian(order, nil)
	if err != nil {
		return err
	}
	defer leash.Close()
	var said bytes.Buffer
	cmd.Stderr = &said
	err = cmd.Run()
	Started(cmd)
	if text := strings.TrimSpace(said.String()); err != nil && text != "" {
		return errors.New(text)
	}
	var refused *fs.PathError
	switch {
	case err == nil:
		return nil
	case order.Namespaces && errors.As(err, &refused):
		return fmt.Errorf("user namespaces are refused: %w", refused.Err)
	}
	return fmt.Errorf("starting a guardian: %w", err)
}

// order returns the Order that confines a server as far as s says.
func (h *Host) order(s Support) guardian.Order {
	o := guardian.Order{Namespaces: s.Namespaces, PIDs: s.PIDs, Files: s.Files, Scopes: s.Scopes, Filter: s.Filter}
	if s.Namespaces || s.Files {
		opts := h.options.Load()
		o.Hide, o.Keep, o.ReadOnly = opts.Hide, opts.Keep, opts.ReadOnly
	}
	return o
}

// command makes the command of a guardian for s.
func (h *Host) command(s Server) (*exec.Cmd, io.Closer, error) {
	var support Support
	if s.Mode != Off {
		support = h.Support()
	}
	var run *syscall.Credential
	var err error
	if s.User != "" {
		if run, err = credential(s.User); err != nil {
			return nil, nil, err
		}
		support.Namespaces, support.PIDs, support.Files = false, false, false // the kernel separates users, and a namespace maps one only
	}
	if s.NoNetwork && !support.Namespaces && os.Geteuid() != 0 {
		return nil, nil, fmt.Errorf("%w without a network: %s", ErrUnsupported, h.Support().Missing)
	}
	order := h.order(support)
	order.Limits = h.limits(s)
	var group []*os.File
	if dir, none := h.groups(); none == nil && s.Resources != (Resources{}) {
		if group, err = newGroup(dir, s.Resources); err != nil {
			return nil, nil, err
		}
	}
	cmd, leash, err := h.guardian(order, append([]string{s.Path}, s.Args...), group...)
	if err != nil {
		if len(group) > 0 {
			removeGroup(filepath.Dir(group[0].Name()))
		}
		return nil, nil, err
	}
	cmd.SysProcAttr.Credential = run
	if s.NoNetwork {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	return cmd, leash, nil
}

// limits returns the resource limits of s: what a control group does not limit.
func (h *Host) limits(s Server) map[string]uint64 {
	limits := map[string]uint64{"fsize": s.Resources.FileSize, "nofile": s.Resources.Files}
	if _, none := h.groups(); none != nil && s.Resources.Processes > 0 && h.countsAlone(s) {
		limits["nproc"] = s.Resources.Processes
	}
	maps.DeleteFunc(limits, func(_ string, most uint64) bool { return most == 0 })
	maps.Copy(limits, s.Limits)
	return limits
}

// limitsProcess says that the system limits file sizes and open files of a process.
const limitsProcess = true

// countsAlone reports whether the kernel counts the processes of s for RLIMIT_NPROC apart
// from those of the user: in a user namespace, since Linux 5.14. It never counts root's.
func (h *Host) countsAlone(s Server) bool {
	var name unix.Utsname
	if unix.Uname(&name) != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 14) &&
		s.Mode != Off && s.User == "" && os.Geteuid() != 0 && h.Support().Namespaces
}

// guardian makes the command of a guardian. group are the files of the server's control group.
func (h *Host) guardian(order guardian.Order, server []string, group ...*os.File) (*exec.Cmd, io.Closer, error) {
	if guardian.Inside() {
		return nil, nil, errors.New("starting a server from a guardian")
	}
	path, first, file, err := h.program.path(h.options.Load().Executable)
	if err != nil {
		return nil, nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("opening a pipe: %w", err)
	}
	order.Group = len(group) > 0
	cmd := exec.Command(path, append(first, order.Args(server)...)...)
	cmd.Args[0] = "toolgate-guardian"
	cmd.Env = guardian.Identity()
	cmd.ExtraFiles = append([]*os.File{r, file}, group...) // as guardian.LeashFD and so on; nil = closed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if order.Namespaces {
		cmd.SysProcAttr.Cloneflags, cmd.SysProcAttr.AmbientCaps = unix.CLONE_NEWUSER|unix.CLONE_NEWNS, namespaceCaps
	}
	if order.PIDs {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWPID
	}
	return cmd, w, nil
}

// Started releases what a started command of Command no longer needs. It is called
// whether Start succeeded or not.
func Started(cmd *exec.Cmd) {
	if len(cmd.ExtraFiles) > 0 {
		_ = cmd.ExtraFiles[0].Close() // the guardian has its own end of the leash
		for _, f := range groupOf(cmd) {
			_ = f.Close() // as above
		}
	}
}

// Ended removes what a command of Command leaves when its process has ended, or could not be
// started.
func Ended(cmd *exec.Cmd) {
	if group := groupOf(cmd); len(group) > 0 {
		removeGroup(filepath.Dir(group[0].Name()))
	}
}

// groupOf returns the files of the control group of a command.
func groupOf(cmd *exec.Cmd) []*os.File {
	return cmd.ExtraFiles[min(len(cmd.ExtraFiles), guardian.GroupFD-guardian.LeashFD):]
}

// credential returns the user to run as, with the user's groups.
func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("finding user %q: %w", name, err)
		}
	}
	ids := []string{u.Uid, u.Gid}
	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("finding groups of user %q: %w", name, err)
	}
	var numbers []uint32
	for _, id := range append(ids, groups...) {
		n, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("finding user %q: %w", name, err)
		}
		numbers = append(numbers, uint32(n))
	}
	return &syscall.Credential{Uid: numbers[0], Gid: numbers[1], Groups: numbers[2:]}, nil
}

// UserSockets returns the sockets of the user's session over which a server could
// start programs outside: the bus, systemd, tmux, screen.
func UserSockets() []string {
	uid := strconv.Itoa(os.Getuid())
	run := cmp.Or(os.Getenv("XDG_RUNTIME_DIR"), "/run/user/"+uid)
	return []string{
		filepath.Join(run, "bus"), filepath.Join(run, "dbus-1"), filepath.Join(run, "systemd"),
		filepath.Join(cmp.Or(os.Getenv("TMUX_TMPDIR"), "/tmp"), "tmux-"+uid),
		filepath.Join("/run/screen", "S-"+os.Getenv("USER")),
	}
}
