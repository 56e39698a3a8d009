package audit

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"errors"

	"github.com/toolgate/toolgate/audit/chain"
)

// Copy copies the trail under root to a new directory, while it may be written to. What
// states the end of a chain is copied before its records, so that the copy has every
// record that it names. progress receives what was copied.
func Copy(to, root string, progress io.Writer) error {
	return chain.Each(root, func(dir string) error {
		target := filepath.Join(to, filepath.Base(dir))
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, segments := range []bool{false, true} {
			for _, e := range entries {
				name := e.Name()
				if !e.Type().IsRegular() || strings.HasSuffix(name, ".tmp") || strings.HasSuffix(name, ".jsonl") != segments {
					continue
				}
				if err := copyFile(filepath.Join(target, name), filepath.Join(dir, name), progress); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// copyFile copies a file that may grow, without the zeros that a segment may end in; a file that
// was just replaced is copied as it is now.
func copyFile(to, from string, progress io.Writer) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Join(err, in.Close())
	}
	end, err := chain.ContentEnd(in)
	if err == nil {
		_, err = io.Copy(out, io.TeeReader(io.NewSectionReader(in, 0, end), progress))
	}
	return errors.Join(err, in.Close(), out.Sync(), out.Close())
}
