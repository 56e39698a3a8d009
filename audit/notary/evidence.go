package notary

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
)

// Verdict answers one of the three questions about a trail.
type Verdict string

// The verdicts.
const (
	OK       Verdict = "ok"
	Broken   Verdict = "broken"
	Unproven Verdict = "unproven" // nothing contradicts it, and nothing proves it
)

// Question is what a Problem is about.
type Question string

// The questions about a trail.
const (
	// ByChain: does every record follow from the one before, and is every chain there
	// that another one names?
	ByChain Question = "chain"
	// ByContent: are the records those for which checkpoints were signed? Without a
	// public key, or a checkpoint that covers them, nothing proves it.
	ByContent Question = "content"
	// ByIndependence: is the trail what a place outside the state directory has seen of
	// it? Without a ledger and anchors nothing proves it.
	ByIndependence Question = "independence"
)

// Evidence is what a trail is compared with beyond its own files. The zero Evidence is
// none.
type Evidence struct {
	Keys      []note.Verifier // of the signers of checkpoints
	Ledgers   []Ledger        // of the trails
	Notes     []Note          // from a store that several machines share
	Anchors   []string        // directories, and files with one signed note each, from anchors
	Cosigners []note.Verifier // one of which has signed each note of the anchors; none = Keys suffice
	Archive   bool            // the trail is an archive: its chains may end before their checkpoints
	Directory bool            // Keys and Ledgers are those of one key directory: see ErrOtherKeys
	Replica   bool            // the roots are those of one replica: others hold the chains of other trails that Notes name
	Progress  io.Writer       // unless nil, receives each line that was checked; its error ends Verify
}

// ErrOtherKeys reports that Evidence.Directory is the key directory of another trail: it has
// keys and no ledger of this one, and none of the keys signed a checkpoint of this one.
var ErrOtherKeys = errors.New("the key directory is not that of this trail")

// Note is the last checkpoint of a chain of any replica. One that no known key has signed
// shows that records are missing, and proves nothing.
type Note struct {
	Source  string // for problems
	Signed  []byte
	Retired bool // its replica is gone for good, so that its chain may be missing
}

// Claimed returns the checkpoint that n states, whoever has signed it.
func (n Note) Claimed() (Checkpoint, error) { return claimed(n.Signed) }

// mark is a record that something outside the chain names.
type mark struct {
	audit.Earlier
	at       time.Time
	question Question
	source   string // that names the record
	by       string // chain whose open record names it; "" = a signed note
	found    string // hash of the record in the chain; "" = not seen
	unsigned bool   // by a known key: it vouches for nothing
	stored   bool   // in a store that several machines share
	retired  bool   // see Note
	trail    string // of a note
}

// removal is a record of the trail that says that a chain was archived and removed.
type removal struct {
	audit.Earlier        // the last record of the chain
	by            string // chain of the record
	seq           uint64 // of the record
}

// exhibits is the evidence about one trail.
type exhibits struct {
	Evidence
	marks    map[string][]*mark // by instance
	problems []Problem
	strange  bool            // a chain has a checkpoint that no known key signed
	trails   map[string]bool // names of the trails
	starts   map[string]Checkpoint
	removals []removal
	roots    map[string]string // of each chain
	names    map[string]string // of the trail in each root
}

// gather reads the evidence about chains, by their directories.
func (e Evidence) gather(chains []string) (*exhibits, error) {
	x := &exhibits{Evidence: e, marks: map[string][]*mark{}, trails: map[string]bool{}, starts: map[string]Checkpoint{}, roots: map[string]string{}, names: map[string]string{}}
	for _, l := range e.Ledgers {
		x.trails[l.Trail] = true
	}
	for _, dir := range chains {
		if err := x.readChain(dir); err != nil {
			return nil, err
		}
	}
	if e.Directory && len(e.Ledgers) == 0 && x.strange && len(x.trails) == 0 {
		return nil, ErrOtherKeys
	}
	for _, l := range e.Ledgers {
		if _, err := x.readNotes(l.Dir, ledgerSource); err != nil {
			return nil, err
		}
	}
	for _, n := range e.Notes {
		if err := x.readNote(n); err != nil {
			x.problem(ByIndependence, "%s: %v", n.Source, err)
		}
	}
	for _, path := range e.Anchors {
		found, err := x.readNotes(path, "anchor "+path)
		if err != nil {
			return nil, err
		}
		if found == 0 {
			x.problem(ByIndependence, "anchor %s has no checkpoint of this trail", path)
		}
	}
	return x, nil
}

func (x *exhibits) problem(q Question, format string, args ...any) {
	x.problems = append(x.problems, Problem{Question: q, What: fmt.Sprintf(format, args...)})
}

// readChain reads what a chain says about others, and its signed checkpoint.
func (x *exhibits) readChain(dir string) error {
	name := filepath.Base(dir)
	x.roots[name] = filepath.Dir(dir)
	if numbers, err := chain.Segments(dir); err == nil && len(numbers) > 0 {
		line, err := chain.FirstLine(dir, numbers[0])
		if err != nil {
			return err
		}
		if first, err := audit.Parse(line); err == nil && first.Kind == audit.KindOpen {
			for _, e := range first.Before {
				x.add(&mark{Earlier: e, at: first.Time, question: ByChain, source: "the open record of " + name, by: name})
			}
		}
	}
	signed, err := os.ReadFile(filepath.Join(dir, checkpointName))
	if c, failed := claimed(signed); err == nil && failed == nil {
		x.names[x.roots[name]] = c.Trail
	}
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(signed) == 0 || len(x.Keys) == 0 {
		return nil // the file is not flushed: a power failure may empty it
	}
	if err != nil {
		return err
	}
	c, err := OpenCheckpoint(signed, note.VerifierList(x.Keys...))
	var foreign *note.UnverifiedNoteError
	switch {
	case err != nil:
		x.strange = x.strange || errors.As(err, &foreign)
		x.problem(ByContent, "%s of %s: %v", checkpointName, name, err)
	case c.Instance != name || c.Segment != 0:
		x.problem(ByContent, "%s of %s is that of another chain", checkpointName, name)
	default:
		x.trails[c.Trail] = true
		x.addNote(c, ByContent, "the signed checkpoint")
	}
	return nil
}

func (x *exhibits) add(m *mark) { x.marks[m.Instance] = append(x.marks[m.Instance], m) }

// readNote reads a checkpoint of any trail.
func (x *exhibits) readNote(n Note) error {
	c, err := OpenCheckpoint(n.Signed, note.VerifierList(x.Keys...))
	_, unsigned := errors.AsType[*note.UnverifiedNoteError](err)
	if unsigned {
		c, err = claimed(n.Signed)
	}
	if err == nil {
		x.add(&mark{Earlier: audit.Earlier{Instance: c.Instance, Seq: c.Seq, Hash: c.Hash}, at: c.Time, question: ByIndependence, source: n.Source, unsigned: unsigned, stored: true, retired: n.Retired, trail: c.Trail})
	}
	return err
}

// claimed returns the checkpoint of a note whoever has signed it.
func claimed(signed []byte) (Checkpoint, error) {
	text, _, _ := strings.Cut(string(signed), "\n\n")
	return ParseCheckpoint(text + "\n")
}

func (x *exhibits) addNote(c Checkpoint, q Question, source string) {
	x.add(&mark{Earlier: audit.Earlier{Instance: c.Instance, Seq: c.Seq, Hash: c.Hash}, at: c.Time, question: q, source: source, trail: c.Trail})
}

// readNotes reads the notes of this trail in a directory or a file, and returns how many
// there are. While the name of the trail is not known, every checkpoint is of this trail.
func (x *exhibits) readNotes(path, source string) (found int, err error) {
	paths := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if paths, err = filepath.Glob(filepath.Join(path, "*.note")); err != nil {
			return 0, err
		}
	}
	named := len(x.trails) > 1 || len(x.trails) == 1 && !x.trails[""]
	for _, path := range paths {
		signed, err := os.ReadFile(path)
		if err != nil {
			return found, err
		}
		c, err := OpenCheckpoint(signed, note.VerifierList(x.Keys...))
		var foreign *note.UnverifiedNoteError
		switch {
		case errors.As(err, &foreign):
		case err != nil:
			x.problem(ByIndependence, "%s: %v", path, err)
		case c.Segment == 0 && (!named || x.trails[c.Trail]):
			found++
			if source != ledgerSource && !x.cosigned(signed) {
				x.problem(ByIndependence, "%s: no valid signature of a witness", path)
				continue
			}
			x.addNote(c, ByIndependence, source)
		}
	}
	return found, nil
}

// ledgerSource names the ledger in problems.
const ledgerSource = "the ledger"

// cosigned reports whether one of the cosigners, if there are any, has signed a note.
func (x *exhibits) cosigned(signed []byte) bool {
	for _, v := range x.Cosigners {
		if _, err := note.Open(signed, note.VerifierList(v)); err == nil {
			return true
		}
	}
	return len(x.Cosigners) == 0
}

// bySeq compares a mark with the number of a record.
func bySeq(m *mark, seq uint64) int { return cmp.Compare(m.Seq, seq) }

// compare notes the hash of a record that marks, in the order of their numbers, name. A
// witness keeps many.
func compare(marks []*mark, seq uint64, hash string) {
	for i, _ := slices.BinarySearchFunc(marks, seq, bySeq); i < len(marks) && marks[i].Seq == seq; i++ {
		marks[i].found = hash
	}
}

// judgeMarks finds the marks that contradict a chain.
func (c *check) judgeMarks() {
	for _, m := range c.marks {
		c.question = m.question
		switch {
		case m.Seq > c.chain.Seq && c.archive:
		case m.Seq > c.chain.Seq:
			c.problem("%s missing at the end: %s names record %d", missing("record", c.chain.Seq+1, m.Seq), m.source, m.Seq)
		case m.found != "" && m.found != m.Hash:
			c.problem("record %d is not the one that %s names", m.Seq, m.source)
		case m.found == "" && (c.start.Segment == 0 || m.Seq > c.start.Seq):
			c.problem("record %d, which %s names, is missing", m.Seq, m.source)
		}
	}
	c.question = ByChain
}

// maxUnsigned and unsignedFor bound the records at the end of a chain that no checkpoint
// covers: more than a healthy signer leaves.
const (
	maxUnsigned = 10_000
	unsignedFor = time.Minute
)

// beginsFor is how long a process that runs may be without a first checkpoint.
const beginsFor = 10 * time.Second

// judge finds what the evidence says about the trail as a whole, once every chain is
// checked.
func (x *exhibits) judge(rep *Report) {
	chains := map[string]*Chain{}
	for i := range rep.Chains {
		chains[rep.Chains[i].Instance] = &rep.Chains[i]
	}
	removed := x.removed(rep)
	for _, name := range slices.Sorted(maps.Keys(x.marks)) {
		for _, m := range x.marks[name] {
			switch {
			case chains[name] != nil || x.Archive || x.covers(removed[name], m):
			case m.retired && !x.trails[m.trail]:
				rep.Retired = append(rep.Retired, Elsewhere{name, m.Seq, m.Hash, m.source})
			case x.Replica && m.stored && !x.trails[m.trail]:
				rep.Elsewhere = append(rep.Elsewhere, Elsewhere{name, m.Seq, m.Hash, m.source})
			default:
				x.problem(m.question, "chain %s is missing: %s names its record %d", name, m.source, m.Seq)
			}
		}
	}
	signed := x.reach(chains, func(*mark) bool { return true })
	outside := x.reach(chains, func(m *mark) bool {
		return m.question == ByIndependence && (len(x.Anchors) == 0 || strings.HasPrefix(m.source, "anchor "))
	})
	seen := len(outside) > 0
	for i := range rep.Chains {
		c := &rep.Chains[i]
		c.Signed, c.Seen = signed[c.Instance].Seq, outside[c.Instance].Seq
		seen = seen && (c.Seen > 0 || c.Seq == 0)
		if len(x.Keys) > 0 && c.Seq > 0 {
			if what := x.unproven(c, signed); what != "" {
				rep.Unproven = append(rep.Unproven, Problem{Question: ByContent, What: what})
			}
		}
	}
	rep.Problems = append(rep.Problems, x.problems...)
	rep.Verdicts = rep.verdicts(len(x.Keys) > 0 && len(rep.Unproven) == 0, seen)
}

// removed returns the removals of chains that count, by chain, and lists them in rep. The
// record of a removal counts when a checkpoint of its own chain covers it. That a later chain
// names the record is not enough: whoever added it after the end of an earlier chain would have
// it vouched for by the next start. Without keys nothing is proved anyway.
func (x *exhibits) removed(rep *Report) map[string][]removal {
	counted := map[string][]removal{}
	for _, r := range x.removals {
		signed := slices.ContainsFunc(x.marks[r.by], func(m *mark) bool { return m.by == "" && !m.unsigned && m.found == m.Hash && m.Seq >= r.seq })
		if len(x.Keys) == 0 || signed {
			counted[r.Instance] = append(counted[r.Instance], r)
			rep.Removed = append(rep.Removed, r.Earlier)
		}
	}
	slices.SortFunc(rep.Removed, func(a, b audit.Earlier) int {
		return cmp.Or(strings.Compare(a.Instance, b.Instance), cmp.Compare(a.Seq, b.Seq))
	})
	rep.Removed = slices.Compact(rep.Removed)
	return counted
}

// covers reports whether a removal that a chain of the same trail records explains that m names
// a chain that is missing: the chain ended with the record of m, or later.
func (x *exhibits) covers(removals []removal, m *mark) bool {
	trail := m.trail
	if m.by != "" {
		trail = x.names[x.roots[m.by]]
	}
	return slices.ContainsFunc(removals, func(r removal) bool {
		return x.names[x.roots[r.by]] == trail && (r.Seq > m.Seq || r.Earlier == m.Earlier)
	})
}

// unproven says which records of c need a signature and have none, "" for none of them. A
// chain has no checkpoint in its first moments; all has the last one of every chain.
func (x *exhibits) unproven(c *Chain, all map[string]mark) string {
	signed := all[c.Instance]
	if start := x.starts[c.Instance]; signed.Seq < start.Seq {
		signed.Seq, signed.at = start.Seq, start.Time
	}
	c.Signed = signed.Seq
	switch {
	case signed.Seq == 0 && len(all) > 0 && !c.Closed && time.Since(c.First).Abs() < beginsFor:
	case signed.Seq == 0:
		return fmt.Sprintf("no checkpoint signed by a known key covers chain %s", c.Instance)
	case c.Seq > signed.Seq+maxUnsigned, c.Seq > signed.Seq && c.Last.Sub(signed.at) > unsignedFor:
		return fmt.Sprintf("no checkpoint covers %s of chain %s", missing("record", signed.Seq+1, c.Seq), c.Instance)
	}
	return ""
}

// reach returns the last record of each chain for which notes that count vouch: by
// themselves, or through the open record of a chain for which they do.
func (x *exhibits) reach(chains map[string]*Chain, counts func(*mark) bool) map[string]mark {
	last := map[string]mark{}
	for changed := true; changed; {
		changed = false
		for name, marks := range x.marks {
			for _, m := range marks {
				vouched := m.by == "" && !m.unsigned && counts(m) || m.by != "" && last[m.by].Seq > 0
				if c := chains[name]; vouched && c != nil && (m.found == m.Hash || m.Seq < x.starts[name].Seq) && m.Seq > last[name].Seq {
					last[name], changed = *m, true
				}
			}
		}
	}
	return last
}

// readStart reads the signed starting point of a chain whose older records were
// archived. The zero Checkpoint is the beginning of the chain.
func (c *check) readStart(keys []note.Verifier) {
	signed, err := os.ReadFile(filepath.Join(c.root, c.chain.Instance, startName))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	c.place, c.question = Place{File: c.chain.Instance + "/" + startName}, ByContent
	defer func() { c.place, c.question = Place{}, ByChain }()
	start, verified := Checkpoint{}, err
	if err == nil {
		start, verified = OpenCheckpoint(signed, note.VerifierList(keys...))
	}
	if verified != nil && len(keys) > 0 {
		c.problem("%v", verified)
		return
	}
	if len(keys) == 0 { // nothing proves the starting point
		start, err = claimed(signed)
	}
	hash, _ := hex.DecodeString(start.Hash)
	if err == nil && (start.Instance != c.chain.Instance || start.Segment == 0 || len(hash) != 32) {
		err = errors.New("the note is not the starting point of this chain")
	}
	if err != nil {
		c.problem("%v", err)
		return
	}
	c.start, c.seq = start, start.Seq
	copy(c.hashes[0][:], hash)
	c.hashes[1] = c.hashes[0]
	c.chain.Seq, c.chain.Head = start.Seq, start.Hash
	c.chain.Archived = start.Seq
	compare(c.marks, start.Seq, start.Hash)
	if start.Seq == c.head.Seq {
		c.atHead = start.Hash
	}
}
