package guardian

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// mapIDs gives the process its own user and group in the new user namespace
// (user_namespaces(7)). It has to come before the process is made undumpable, which
// gives its files in /proc to root.
func mapIDs() error {
	for _, f := range []struct{ path, text string }{
		{"/proc/self/setgroups", "deny"},
		{"/proc/self/uid_map", identity(os.Getenv(uidName))},
		{"/proc/self/gid_map", identity(os.Getenv(gidName))},
	} {
		if err := os.WriteFile(f.path, []byte(f.text), 0); err != nil {
			return fmt.Errorf("mapping user and group: %w", err)
		}
	}
	return nil
}

func identity(id string) string { return id + " " + id + " 1" }

// buildView changes the mount namespace to what the server may see.
func (o *Order) buildView() error {
	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("reading the working directory: %w", err)
	}
	// Mounts made outside still arrive, ours do not leave.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("separating mounts: %w", err)
	}
	if o.PIDs {
		if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
			return fmt.Errorf("mounting /proc of the PID namespace: %w", err)
		}
	}
	for _, path := range o.pinned() {
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("pinning %s: %w", path, err)
		}
	}
	for _, path := range o.ReadOnly {
		if err := errors.Join(unix.Mount(path, path, "", unix.MS_BIND, ""), remountReadOnly(path)); err != nil {
			return fmt.Errorf("write-protecting %s: %w", path, err)
		}
	}
	for _, path := range o.Hide {
		if err := o.hide(path); err != nil {
			return fmt.Errorf("hiding %s: %w", path, err)
		}
	}
	// The working directory still lies on the mount below those that were added.
	if err := os.Chdir(dir); err != nil {
		return fmt.Errorf("entering the working directory: %w", err)
	}
	return nil
}

// pinned returns the directories above hidden and protected paths that the user
// could rename away, outer ones first. A mount point cannot be renamed.
func (o *Order) pinned() []string {
	var out []string
	for _, path := range slices.Concat(o.Hide, o.ReadOnly) {
		if unix.Access(path, unix.F_OK) != nil {
			continue
		}
		for dir := filepath.Dir(path); dir != "/"; dir = filepath.Dir(dir) {
			if !slices.Contains(out, dir) && unix.Access(filepath.Dir(dir), unix.W_OK) == nil {
				out = append(out, dir)
			}
		}
	}
	slices.Sort(out) // a parent is a prefix of its children
	return out
}

// hide covers path: a file with /dev/null, a directory with an empty one in which
// only the directories of Keep are.
func (o *Order) hide(path string) error {
	info, err := os.Stat(path)
	if outOfReach(path, err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
	}
	kept := make(map[string]int)
	for _, dir := range o.Keep {
		if !strings.HasPrefix(dir, path+"/") {
			continue
		}
		fd, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("keeping %s: %w", dir, err)
		}
		defer os.NewFile(uintptr(fd), dir).Close()
		kept[dir] = fd
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "size=4k,mode=0755"); err != nil {
		return err
	}
	for dir, fd := range kept {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("keeping %s: %w", dir, err)
		}
	}
	return remountReadOnly(path)
}

// outOfReach reports whether err, of looking at path, says that no process of this user
// reaches path: nothing is there, or a directory above it is closed and belongs to
// another user, who alone can open it.
func outOfReach(path string, err error) bool {
	if !errors.Is(err, os.ErrPermission) {
		return errors.Is(err, os.ErrNotExist)
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		var closed unix.Stat_t
		if err := unix.Stat(dir, &closed); err == nil || dir == "/" {
			return err == nil && int(closed.Uid) != os.Getuid()
		}
	}
}

// remountReadOnly makes one mount read-only. The flags that the mount has already
// must be repeated: in a user namespace they are locked.
func remountReadOnly(path string) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return err
	}
	flags := uintptr(unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY)
	for st, ms := range map[uintptr]uintptr{
		unix.ST_NOSUID: unix.MS_NOSUID, unix.ST_NODEV: unix.MS_NODEV, unix.ST_NOEXEC: unix.MS_NOEXEC,
		unix.ST_NOATIME: unix.MS_NOATIME, unix.ST_NODIRATIME: unix.MS_NODIRATIME, unix.ST_RELATIME: unix.MS_RELATIME,
	} {
		if uintptr(fs.Flags)&st != 0 {
			flags |= ms
		}
	}
	return unix.Mount("", path, "", flags, "")
}
