package guardian

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// scopesABI is the first version of Landlock with scopes (landlock(7)).
const scopesABI = 6

// fileRights are the rights over files by the version of Landlock that brought
// them, from 1 on.
var fileRights = []uint64{
	unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1 - 1, unix.LANDLOCK_ACCESS_FS_REFER,
	unix.LANDLOCK_ACCESS_FS_TRUNCATE, 0, unix.LANDLOCK_ACCESS_FS_IOCTL_DEV,
}

// rightsOfFiles are those that a rule for a file may name.
const rightsOfFiles = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV

// newDomain returns the ruleset of a Landlock domain. A process in the domain can trace
// processes of the domain only; with Scopes the same holds for signals and connections to
// abstract sockets; with Files the process reaches every file but the hidden ones.
func (o *Order) newDomain() (*os.File, error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return nil, errno
	}
	var attr unix.LandlockRulesetAttr
	if o.Scopes {
		if version < scopesABI {
			return nil, fmt.Errorf("the kernel has version %d, scopes need %d", version, scopesABI)
		}
		attr.Scoped = unix.LANDLOCK_SCOPE_SIGNAL | unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	}
	if o.Files {
		for _, rights := range fileRights[:min(int(version), len(fileRights))] {
			attr.Handled_access_fs |= rights
		}
	}
	fd, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return nil, errno
	}
	if o.Files {
		if err := o.allowOthers(int(fd), attr.Handled_access_fs); err != nil {
			return nil, err
		}
	}
	return os.NewFile(fd, "ruleset"), nil
}

// allowOthers allows everything beside the way to a hidden path: Landlock knows no
// denials. The directories on the way cannot be listed, and what is made in them later is
// hidden too; so a way through a directory that the user may write is an error.
func (o *Order) allowOthers(ruleset int, rights uint64) error {
	var way []string
	for _, path := range o.Hide {
		if _, err := os.Lstat(path); outOfReach(path, err) {
			continue // nothing to hide, as in a namespace
		}
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			if unix.Access(dir, unix.W_OK) == nil {
				return fmt.Errorf("hiding %s: its parent %s belongs to the user", path, dir)
			}
			if !slices.Contains(way, dir) {
				way = append(way, dir)
			}
			if dir == "/" {
				break
			}
		}
	}
	for _, dir := range way {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return fmt.Errorf("listing what is not hidden: %w", err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			if slices.Contains(way, path) || slices.Contains(o.Hide, path) {
				continue
			}
			if err := allow(ruleset, path, rights); err != nil {
				return fmt.Errorf("allowing %s: %w", path, err)
			}
		}
	}
	for _, dir := range o.Keep {
		if err := allow(ruleset, dir, rights); err != nil {
			return fmt.Errorf("allowing %s: %w", dir, err)
		}
	}
	return nil
}

// allow adds a rule for path. What cannot be opened cannot be reached either.
func allow(ruleset int, path string, rights uint64) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer os.NewFile(uintptr(fd), path).Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return nil // where it leads has rules of its own
	case unix.S_IFDIR:
	default:
		rights &= rightsOfFiles
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}
