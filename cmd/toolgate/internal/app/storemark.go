package app

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/toolgate/toolgate/internal/files"
)

// storeMark is the file of the state directory that names the store that was used last.
const storeMark = "store"

// markStore notes which store the state directory goes with. It returns a reason to distrust the
// state when another store was used before: the file was deleted, or the settings name another
// database. Its tickets, usage and revoked tokens are not known then.
func markStore(state, store string) (doubt string, err error) {
	path := filepath.Join(state, storeMark)
	known, err := files.Read(path, 1<<10)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("reading which state was used last: %w", err)
	}
	before := strings.TrimSpace(string(known))
	if before == store {
		return "", nil
	}
	if err := files.Replace(path, []byte(store+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("noting which state is used: %w", err)
	}
	if before == "" {
		return "", nil
	}
	return fmt.Sprintf("the state %s, which was used here before, is missing, and %s is in its place: tickets, usage, revocations and stops of the one before are not known", before, store), nil
}
