package store

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/toolgate/toolgate/internal/files"
)

// Instance shows that a process lives: a locked file that the kernel unlocks when the
// process ends, in whatever way, or a lease in a database server.
type Instance struct {
	end func() error
}

// Who names this process for people, as in "process 4711 on web-1".
func Who() string {
	host, _ := os.Hostname() // nothing depends on it
	return fmt.Sprintf("process %d on %s", os.Getpid(), host)
}

// HoldInstance creates dir/<id>.lock and holds its lock until Close or the end of the
// process. The id must be unique; one that is taken is an error. The file is locked
// before it gets its name, so it is never found unlocked while its process lives.
func HoldInstance(dir, id string) (*Instance, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("holding instance lock: %w", err)
	}
	if id != filepath.Base(id) {
		return nil, fmt.Errorf("holding instance lock: %q is no file name", id)
	}
	file, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return nil, fmt.Errorf("holding instance lock: %w", err)
	}
	name := filepath.Join(dir, id+".lock")
	if err = files.TryLock(file); err == nil {
		_, err = fmt.Fprintln(file, Who())
	}
	if err == nil {
		err = os.Link(file.Name(), name)
	}
	if err = errors.Join(err, os.Remove(file.Name())); err != nil {
		return nil, errors.Join(fmt.Errorf("holding instance lock: %w", err), file.Close())
	}
	return &Instance{end: func() error { return errors.Join(os.Remove(name), file.Close()) }}, nil
}

// Close releases the lock and removes the file, or the lease.
func (i *Instance) Close() error {
	if err := i.end(); err != nil {
		return fmt.Errorf("releasing instance lock: %w", err)
	}
	return nil
}

// InstanceAlive reports whether a process holds dir/<id>.lock. When this cannot be
// determined, it returns an error: a process never counts as dead by mistake.
func InstanceAlive(dir, id string) (bool, error) {
	file, err := os.OpenFile(filepath.Join(dir, id+".lock"), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for instance %s: %w", id, err)
	}
	defer file.Close()
	switch err := files.TryShare(file); {
	case errors.Is(err, files.ErrHeld):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("looking for instance %s: %w", id, err)
	}
	return false, nil
}

// SweepInstances removes the locks in dir that no process holds, and returns what the
// others say of their processes, as in "process 4711 on web-1". A directory that does not
// exist has none.
func SweepInstances(dir string) (alive []string, err error) {
	all, err := sweepInstances(dir)
	for _, r := range all {
		alive = append(alive, r.Who)
	}
	return alive, err
}

// sweepInstances is SweepInstances with the IDs.
func sweepInstances(dir string) (alive []Replica, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sweeping instance locks: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".lock")
		if !ok {
			continue
		}
		lives, err := InstanceAlive(dir, id)
		if err != nil {
			return nil, err
		}
		name := filepath.Join(dir, e.Name())
		if !lives {
			_ = os.Remove(name) // one that stays is swept again
			continue
		}
		who, _ := os.ReadFile(name) // versions before this one wrote nothing
		alive = append(alive, Replica{ID: id, Who: cmp.Or(strings.TrimSpace(string(who)), "instance "+id)})
	}
	return alive, nil
}
