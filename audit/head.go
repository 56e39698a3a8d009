package audit

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

const headName = "HEAD"

// head is the content of a HEAD file: a record that was on disk at the time.
type head struct {
	V    int       `json:"v"`
	Seq  uint64    `json:"seq"`
	Hash string    `json:"hash"`
	Time time.Time `json:"time"`
}

func writeHead(dir string, at link, now time.Time) error {
	data, err := json.Marshal(head{V: formVersion, Seq: at.seq, Hash: hex.EncodeToString(at.hash[:]), Time: now.UTC()})
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, headName+".tmp")
	if err := writeFile(tmp, append(data, '\n')); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, headName))
}

func writeFile(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = dataSync(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func readHead(dir string) (head, error) {
	var h head
	data, err := os.ReadFile(filepath.Join(dir, headName))
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fmt.Errorf("reading %s: %w", headName, err)
	}
	if h.V != formVersion || len(h.Hash) != 64 {
		return h, fmt.Errorf("reading %s: not the form of version %d", headName, formVersion)
	}
	return h, nil
}
