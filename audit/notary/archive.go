package notary

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/files"
)

// Archived is what Archive moved.
type Archived struct {
	Chains   int    `json:"chains"`
	Segments int    `json:"segments"`
	Bytes    int64  `json:"bytes"`
	To       string `json:"to"`

	// Removed are chains whose directories were removed, because nothing is left in them.
	Removed []audit.Earlier `json:"removed,omitempty"`
}

// Archive moves the oldest segments of every chain under root to the directory to: those
// whose records are all from before a time, but never the segment that a process may be
// writing, nor one that records the removal of other chains. What stays begins with a starting
// point that signer signs, so that the trail still verifies, and the archive verifies with
// Evidence.Archive. A log may be written to meanwhile. A segment is removed only once its copy and the starting point are on disk;
// an Archive that was interrupted is finished by the next one. Chains of which nothing is
// left are in Archived.Removed: RemoveChains removes them.
func Archive(root, to string, before, now time.Time, trail string, signer note.Signer) (Archived, error) {
	done := Archived{To: to}
	err := chain.Each(root, func(dir string) error {
		a := archiver{from: dir, to: filepath.Join(to, filepath.Base(dir)), signer: signer, done: &done,
			last: Checkpoint{Trail: trail, Instance: filepath.Base(dir), Time: now}}
		return a.run(before)
	})
	if err != nil {
		return done, fmt.Errorf("archiving audit log: %w", err)
	}
	return done, nil
}

// archiver archives one chain.
type archiver struct {
	from, to string
	signer   note.Signer
	done     *Archived
	last     Checkpoint // the last archived record
}

func (a *archiver) run(before time.Time) error {
	numbers, err := chain.Segments(a.from)
	if err != nil {
		return err
	}
	moved := 0
	for i, n := range numbers {
		old, err := a.isOld(n, i == len(numbers)-1, before)
		if err != nil {
			return err
		}
		if !old {
			break
		}
		moved = i + 1
	}
	if moved == 0 {
		return nil
	}
	if err := a.copy(numbers[:moved]); err != nil {
		return err
	}
	a.last.Segment = numbers[moved-1] + 1
	start, err := a.last.sign(a.signer)
	if err != nil {
		return err
	}
	if err := files.Replace(filepath.Join(a.from, startName), start, 0o600); err != nil {
		return err
	}
	for _, n := range numbers[:moved] {
		if err := os.Remove(chain.Path(a.from, n)); err != nil {
			return err
		}
	}
	a.done.Chains++
	if moved == len(numbers) {
		a.done.Removed = append(a.done.Removed, audit.Earlier{Instance: a.last.Instance, Seq: a.last.Seq, Hash: a.last.Hash})
	}
	return nil
}

// isOld reports whether the records of a segment are old, and notes the last one. The last
// segment of a chain may go only when its process has ended; after a kill it may be without a
// whole record.
func (a *archiver) isOld(number int, last bool, before time.Time) (bool, error) {
	offset, found, err := chain.LastLines(chain.Path(a.from, number), 1)
	if err != nil {
		return false, err
	}
	if found == 0 {
		if !last || a.last.Seq == 0 {
			return false, nil
		}
		return chain.Ended(a.from, false)
	}
	for line, err := range chain.Lines(chain.Path(a.from, number), offset) {
		if err != nil {
			return false, err
		}
		r, err := audit.Parse(line)
		if err != nil || !r.Time.Before(before) {
			return false, nil
		}
		if last {
			if over, err := chain.Ended(a.from, r.Kind == audit.KindClose); err != nil || !over {
				return false, err
			}
		}
		if may, err := a.mayLeave(number); err != nil || !may {
			return false, err
		}
		a.last.Seq, a.last.Hash = r.Seq, r.Hash
	}
	return true, nil
}

// mayLeave reports whether no record of a segment is the only proof that chains were removed.
func (a *archiver) mayLeave(number int) (bool, error) {
	for line, err := range chain.Lines(chain.Path(a.from, number), 0) {
		if err != nil {
			return false, err
		}
		if !bytes.Contains(line, []byte(audit.EventArchived)) {
			continue
		}
		if r, err := audit.Parse(line); err != nil || len(removals(r)) > 0 {
			return false, nil
		}
	}
	return true, nil
}

// copy copies segments to the archive, with the starting point of the first and a signed
// checkpoint of the last record.
func (a *archiver) copy(numbers []int) error {
	if err := os.MkdirAll(a.to, 0o700); err != nil {
		return err
	}
	before, err := chain.Segments(a.to)
	if err != nil {
		return err
	}
	for _, n := range numbers {
		data, err := os.ReadFile(chain.Path(a.from, n))
		if data = bytes.TrimRight(data, "\x00"); err == nil { // a killed process leaves zeros behind
			err = files.Replace(chain.Path(a.to, n), data, 0o600)
		}
		if err != nil {
			return err
		}
		a.done.Segments++
		a.done.Bytes += int64(len(data))
	}
	if start, err := os.ReadFile(filepath.Join(a.from, startName)); err == nil && len(before) == 0 {
		err = files.Replace(filepath.Join(a.to, startName), start, 0o600)
		if err != nil {
			return err
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	end := chain.Link{Seq: a.last.Seq}
	_, _ = hex.Decode(end.Hash[:], []byte(a.last.Hash)) // the chain was verified
	if err := chain.WriteHead(a.to, end, a.last.Time); err != nil {
		return err
	}
	signed, err := a.last.sign(a.signer)
	if err != nil {
		return err
	}
	return files.Replace(filepath.Join(a.to, checkpointName), signed, 0o600)
}
