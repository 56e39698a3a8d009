package keys

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/files"
)

// Count returns the number that RaiseCount left under a name, 0 when there is none.
func (d *Dir) Count(name string) (int64, error) {
	text, err := os.ReadFile(d.countFile(name))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading count: %w", err)
	}
	return parseCount(name, text)
}

// RaiseCount makes a number at least n, durably. It never lowers it, however many
// processes call it at once.
func (d *Dir) RaiseCount(name string, n int64) (err error) {
	f, err := os.OpenFile(d.countFile(name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("raising count: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }() // unlocks
	if err := files.Lock(f); err != nil {
		return fmt.Errorf("raising count: %w", err)
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return fmt.Errorf("raising count: %w", err)
	}
	if have, err := parseCount(name, text); err != nil || have >= n {
		return err
	}
	// The text has always the same length, so that it is replaced in one write.
	if _, err = f.WriteAt(fmt.Appendf(nil, "%020d\n", n), 0); err == nil {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("raising count: %w", err)
	}
	return nil
}

func (d *Dir) countFile(name string) string { return filepath.Join(d.path, name+".count") }

// parseCount reads a count; an empty file was just created.
func parseCount(name string, text []byte) (int64, error) {
	if len(text) == 0 {
		return 0, nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("reading count %s: it is not a number\nhint: remove the file; live tickets may then run although they did before", name)
	}
	return n, nil
}
