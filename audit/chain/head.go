package chain

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/toolgate/toolgate/internal/files"
)

// HeadName is the name of the HEAD file in the directory of a chain.
const HeadName = "HEAD"

// Head is the content of a HEAD file: a record that was on disk at the time.
type Head struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

// WriteHead replaces HEAD in the directory of a chain, durably.
func WriteHead(dir string, at Link, now time.Time) error {
	data, err := json.Marshal(Head{V: Version, Seq: at.Seq, Hash: hex.EncodeToString(at.Hash[:]), Time: now.UTC()})
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(dir, HeadName), append(data, '\n'), 0o600)
}

// ReadHead reads HEAD in the directory of a chain. The error is fs.ErrNotExist when it is missing.
func ReadHead(dir string) (Head, error) {
	var h Head
	data, err := os.ReadFile(filepath.Join(dir, HeadName))
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("reading %s: %w", HeadName, err)
	}
	if h.V != Version || len(h.Hash) != 64 {
		return h, fmt.Errorf("reading %s: not the form of version %d", HeadName, Version)
	}
	return h, nil
}
