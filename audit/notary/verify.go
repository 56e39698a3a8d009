package notary

import (
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/chain"
)

// keepLinks is the largest number of records that a failed write may leave behind
// without Verify taking them for a break: more than a few segments hold.
const keepLinks = 1 << 19

// Verify checks every chain under roots, one for each replica, and compares the trail with
// the evidence. One root that does not exist is a trail without chains where there is a
// ledger. The error is ErrOtherKeys, or reports files that could not be read; faults of the
// trail are in Report.Problems. A log may be verified while it is written to: records that
// arrive meanwhile may or may not be part of the Report.
func (e Evidence) Verify(roots ...string) (Report, error) {
	rep, err := e.verify(roots)
	if err != nil {
		return Report{}, fmt.Errorf("verifying audit log: %w", err)
	}
	return rep, nil
}

func (e Evidence) verify(roots []string) (rep Report, err error) {
	var chains []string // directories
	for _, root := range roots {
		dirs, err := os.ReadDir(root)
		if err != nil && (len(roots) > 1 || len(e.Ledgers) == 0 || !errors.Is(err, fs.ErrNotExist)) {
			return rep, err
		}
		begun := slices.ContainsFunc(dirs, fs.DirEntry.IsDir)
		for _, d := range dirs {
			if dir := filepath.Join(root, d.Name()); d.IsDir() && !empty(dir) {
				chains = append(chains, dir)
			}
		}
		if err == nil && !begun { // whoever made the directory began a chain
			rep.Problems = append(rep.Problems, Problem{Question: ByChain, What: "the trail is empty"})
		}
	}
	// Evidence is read first: records that arrive later must not look missing.
	x, err := e.gather(chains)
	if err != nil {
		return rep, err
	}
	for _, dir := range chains {
		root, name := filepath.Split(dir)
		c := &check{root: root, chain: Chain{Instance: name}, known: true, open: map[string]Unfinished{}, question: ByChain, marks: x.marks[name], archive: e.Archive, progress: e.Progress}
		slices.SortStableFunc(c.marks, func(a, b *mark) int { return bySeq(a, b.Seq) })
		if err := c.run(e.Keys); err != nil {
			return rep, err
		}
		rep.Chains, x.starts[name] = append(rep.Chains, c.chain), c.start
		x.removals = append(x.removals, c.removed...)
	}
	x.judge(&rep)
	return rep, nil
}

// empty reports whether a directory has no entry: its chain has not begun, or was removed.
func empty(dir string) bool {
	entries, err := os.ReadDir(dir)
	return err == nil && len(entries) == 0
}

// check walks one chain.
type check struct {
	root  string
	chain Chain
	place Place // of the current line

	known   bool                  // seq is certain
	seq     uint64                // of the last record
	hashes  [2][sha256.Size]byte  // of the last record, as stated and as computed
	links   []chain.Link          // of the records so far, the newest keepLinks of them
	first   bool                  // the current line is the first of its segment
	open    map[string]Unfinished // by call id
	head    chain.Head
	headErr error
	atHead  string    // hash of the record that HEAD names, "" = not seen
	removed []removal // that the records so far state

	start    Checkpoint // before the first record; zero = the beginning of the chain
	marks    []*mark    // records that others name
	archive  bool       // see Evidence
	progress io.Writer  // see Evidence
	question Question   // that problems are about
}

func (c *check) run(keys []note.Verifier) error {
	// HEAD is read first: records that arrive later must not look missing.
	c.head, c.headErr = chain.ReadHead(filepath.Join(c.root, c.chain.Instance))
	numbers, err := chain.Segments(filepath.Join(c.root, c.chain.Instance))
	if err != nil {
		return err
	}
	c.readStart(keys)
	want := max(1, c.start.Segment)
	for _, n := range numbers {
		if n < c.start.Segment { // archived, and not removed yet
			continue
		}
		c.place = Place{File: c.name(n)}
		if n != want {
			c.problem("%s is missing before this segment", missing("segment", uint64(want), uint64(n-1)))
		}
		want = n + 1
		if err := c.file(n); err != nil {
			return err
		}
		c.chain.Segments++
	}
	c.finish()
	return nil
}

func (c *check) name(number int) string {
	return path.Join(c.chain.Instance, fmt.Sprintf("%06d.jsonl", number))
}

func (c *check) problem(format string, args ...any) {
	c.chain.Problems = append(c.chain.Problems, Problem{Place: c.place, Question: c.question, What: fmt.Sprintf(format, args...)})
}

func missing(noun string, from, to uint64) string {
	if from == to {
		return fmt.Sprintf("%s %d", noun, from)
	}
	return fmt.Sprintf("%ss %d to %d", noun, from, to)
}

// file checks the segment that c.place names.
func (c *check) file(number int) error {
	c.first = true
	if old := len(c.links) - keepLinks; old > 0 {
		c.links = slices.Delete(c.links, 0, old)
	}
	segment := chain.Path(filepath.Join(c.root, c.chain.Instance), number)
	// Without a bound, a log that is being written to could run ahead of its reader.
	info, err := os.Stat(segment)
	if err != nil {
		return err
	}
	for line, err := range chain.Lines(segment, 0) {
		// What follows zeros was never acknowledged, unless HEAD names it: then it is damaged.
		if bytes.IndexByte(line, 0) >= 0 && c.head.Seq <= c.seq {
			break
		}
		if c.place.Line++; errors.Is(err, bufio.ErrTooLong) {
			c.problem("the line is longer than any record")
			return nil
		}
		if err != nil {
			return err
		}
		c.line(line)
		if c.progress != nil {
			if _, err := c.progress.Write(line); err != nil {
				return err
			}
		}
		if c.place.Offset += int64(len(line)) + 1; c.place.Offset >= info.Size() {
			return nil
		}
	}
	end, err := chain.RecordsEnd(segment)
	if c.place.Offset < min(end, info.Size()) {
		c.place.Line++
		c.torn()
	}
	return err
}

func (c *check) torn() {
	if c.chain.Closed {
		c.problem("bytes follow the close record")
		return
	}
	c.chain.Torn = append(c.chain.Torn, c.place)
}

// line checks one whole line. One fault is one problem: the line after a broken one
// may chain to the hash that the broken line states or to its computed hash.
func (c *check) line(line []byte) {
	computed, stated, ok := chain.SplitHash(line)
	rec := new(audit.Record)
	err := json.Unmarshal(line, rec)
	if err == nil && rec.Seq == 0 {
		err = errors.New("no record number")
	}
	if err != nil {
		c.fault(err)
		c.known = false
		c.hashes = [2][sha256.Size]byte{stated, computed}
		return
	}
	if !ok || computed != stated {
		if c.known {
			rec.Seq = c.seq + 1
		}
		c.problem("record %d was changed: its content does not match its hash", rec.Seq)
	} else if !c.follows(rec) {
		return
	}
	c.first = false
	c.take(rec, stated, computed)
}

func (c *check) fault(err error) {
	at := c.place
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		c.place.Offset += max(syntax.Offset-1, 0)
	}
	c.problem("the line is not a record: %v", err)
	c.place = at
}

// follows checks the position of an intact record in the chain. It returns false for
// a record out of place, which is skipped.
func (c *check) follows(rec *audit.Record) bool {
	if rec.V != chain.Version {
		c.problem("record %d has the form of version %d, this program knows %d", rec.Seq, rec.V, chain.Version)
	}
	if rec.Instance != c.chain.Instance {
		c.problem("record %d belongs to chain %q", rec.Seq, rec.Instance)
		return false
	}
	if c.chain.Closed {
		c.problem("record %d follows the close record", rec.Seq)
		return true
	}
	if (rec.Seq == 1) != (rec.Kind == audit.KindOpen) {
		c.problem("record %d is of kind %q", rec.Seq, rec.Kind)
	}
	prevOK := slices.ContainsFunc(c.hashes[:], func(h [sha256.Size]byte) bool { return rec.Prev == hex.EncodeToString(h[:]) })
	switch {
	case rec.Seq == c.seq+1 && prevOK, !c.known && (prevOK || c.hashes == [2][sha256.Size]byte{}):
	case c.first && c.branches(rec):
	case rec.Seq > c.seq+1:
		c.problem("%s missing before this line", missing("record", c.seq+1, rec.Seq-1))
	case rec.Seq <= c.seq:
		c.problem("record %d is out of order: record %d was to follow", rec.Seq, c.seq+1)
		return false
	default:
		c.problem("record %d does not chain to the record before it", rec.Seq)
	}
	return true
}

// branches reports whether rec, the first record of its segment, chains to an earlier
// record than the last one: a failed write left the records between behind, and none
// of them was acknowledged.
func (c *check) branches(rec *audit.Record) bool {
	for i, l := range slices.Backward(c.links) {
		if l.Seq+1 == rec.Seq && hex.EncodeToString(l.Hash[:]) == rec.Prev {
			gone := len(c.links) - 1 - i
			c.links = c.links[:i+1]
			c.chain.Abandoned += gone
			c.chain.Records -= gone
			for id, u := range c.open {
				if u.Seq > l.Seq {
					delete(c.open, id)
				}
			}
			c.removed = slices.DeleteFunc(c.removed, func(r removal) bool { return r.seq > l.Seq })
			return true
		}
	}
	return false
}

func (c *check) take(rec *audit.Record, stated, computed [sha256.Size]byte) {
	c.known, c.seq = true, rec.Seq
	c.hashes = [2][sha256.Size]byte{stated, computed}
	c.links = append(c.links, chain.Link{Seq: rec.Seq, Hash: stated})
	ch := &c.chain
	if ch.Records == 0 {
		ch.First = rec.Time
	}
	ch.Records++
	ch.Seq, ch.Last, ch.Head = rec.Seq, rec.Time, hex.EncodeToString(stated[:])
	if rec.Seq == c.head.Seq {
		c.atHead = ch.Head
	}
	compare(c.marks, rec.Seq, ch.Head)
	for _, e := range removals(rec) {
		c.removed = append(c.removed, removal{e, c.chain.Instance, rec.Seq})
	}
	switch rec.Kind {
	case audit.KindDecision:
		c.open[rec.CallID] = Unfinished{Seq: rec.Seq, Time: rec.Time, CallID: rec.CallID, DecisionID: rec.DecisionID, Server: rec.Server, Tool: rec.Tool}
	case audit.KindOutcome:
		delete(c.open, rec.CallID)
	case audit.KindClose:
		ch.Closed = true
	}
}

// finish compares the end of the chain with HEAD.
func (c *check) finish() {
	end := c.place
	c.place = Place{File: path.Join(c.chain.Instance, chain.HeadName)}
	switch {
	case errors.Is(c.headErr, fs.ErrNotExist):
		// Open writes HEAD right after the first record.
		if c.chain.Records > 1 {
			c.problem("the file is missing: whether records are missing at the end cannot be told")
		}
	case c.headErr != nil:
		c.problem("%v", c.headErr)
	case c.head.Seq > c.chain.Seq:
		if end.File != "" {
			c.place = end
		}
		c.problem("%s missing at the end: HEAD names record %d", missing("record", c.chain.Seq+1, c.head.Seq), c.head.Seq)
	case c.atHead != "" && c.atHead != c.head.Hash:
		c.problem("record %d is not the one that HEAD names", c.head.Seq)
	}
	c.judgeMarks()
	for _, u := range c.open {
		c.chain.Unfinished = append(c.chain.Unfinished, u)
	}
	slices.SortFunc(c.chain.Unfinished, func(a, b Unfinished) int { return cmp.Compare(a.Seq, b.Seq) })
}

// Report is the result of Verify.
type Report struct {
	Chains    []Chain         `json:"chains"`              // by name, which for ULIDs is by age
	Problems  []Problem       `json:"problems,omitempty"`  // of the trail as a whole
	Unproven  []Problem       `json:"unproven,omitempty"`  // records that no checkpoint of a known key covers, and should
	Elsewhere []Elsewhere     `json:"elsewhere,omitempty"` // chains that other replicas hold, by name
	Retired   []Elsewhere     `json:"retired,omitempty"`   // chains of replicas that are gone for good, by name
	Removed   []audit.Earlier `json:"removed,omitempty"`   // chains that were archived whole and removed, by name, with their last records
	Verdicts  Verdicts        `json:"verdicts"`
}

// Verified is a Report with the outcome of the whole verification, for people.
type Verified struct {
	OK    bool     `json:"ok"`              // nothing is broken, and what was required is proved
	State []string `json:"state,omitempty"` // contradictions between trail and store
	Report
}

// Records counts the records of all chains.
func (v Verified) Records() (n int) {
	for _, c := range v.Chains {
		n += c.Records
	}
	return n
}

// Elsewhere is a chain of which a store that replicas share has a checkpoint, and which is
// not in the trail of this replica.
type Elsewhere struct {
	Instance string `json:"instance"`
	Seq      uint64 `json:"seq"`    // of the record that the checkpoint names
	Hash     string `json:"hash"`   // of that record
	Source   string `json:"source"` // says who wrote the checkpoint
}

// Verdicts are the answers to the three questions about a trail.
type Verdicts struct {
	Chain        Verdict `json:"chain"`
	Content      Verdict `json:"content"`
	Independence Verdict `json:"independence"`
}

// verdicts answers the questions, given whether checkpoints of known keys cover the records
// and whether every chain was seen outside.
func (r Report) verdicts(signed, seen bool) Verdicts {
	broken := map[Question]bool{}
	for _, p := range r.All() {
		broken[p.Question] = true
	}
	answer := func(q Question, proven bool) Verdict {
		switch {
		case broken[q]:
			return Broken
		case proven:
			return OK
		}
		return Unproven
	}
	return Verdicts{answer(ByChain, true), answer(ByContent, signed), answer(ByIndependence, seen)}
}

// All returns the problems of the trail and of all chains.
func (r Report) All() []Problem {
	all := slices.Clone(r.Problems)
	for _, c := range r.Chains {
		all = append(all, c.Problems...)
	}
	return all
}

// OK reports whether there is no problem.
func (r Report) OK() bool { return len(r.All()) == 0 }

// Chain describes the log of one process.
type Chain struct {
	Instance   string       `json:"instance"`
	Segments   int          `json:"segments"`
	Records    int          `json:"records"` // in the chain, including open and close
	First      time.Time    `json:"first"`
	Last       time.Time    `json:"last"`
	Seq        uint64       `json:"seq"`                // number of the last record
	Head       string       `json:"head"`               // hash of the last record; noted elsewhere, it proves the chain later
	Closed     bool         `json:"closed"`             // ended cleanly; false for a running process and after a crash
	Archived   uint64       `json:"archived,omitempty"` // number of the last record that was moved to an archive
	Signed     uint64       `json:"signed,omitempty"`   // number of the last record that a signed checkpoint covers
	Seen       uint64       `json:"seen,omitempty"`     // number of the last record that was seen outside: by the anchors, or else by the ledger
	Problems   []Problem    `json:"problems,omitempty"`
	Unfinished []Unfinished `json:"unfinished,omitempty"`
	Torn       []Place      `json:"torn,omitempty"`      // unfinished last lines: never acknowledged
	Abandoned  int          `json:"abandoned,omitempty"` // records that a failed write left behind
}

// Place is a position in a file of the log.
type Place struct {
	File   string `json:"file"`   // relative to the root, with slashes
	Line   int    `json:"line"`   // from 1; 0 = the file as a whole
	Offset int64  `json:"offset"` // in bytes, of the start of the line or of the fault itself
}

// String returns file:line.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problem is one fault of a chain or of the trail, which has no Place.
type Problem struct {
	Place
	Question Question `json:"question"`
	What     string   `json:"what"`
}

// String returns file:line (byte n): what.
func (p Problem) String() string {
	if p.File == "" {
		return p.What
	}
	return fmt.Sprintf("%s (byte %d): %s", p.Place, p.Offset, p.What)
}

// Unfinished is a decision without an outcome: the call is running, or the process
// ended during the call and its outcome is unknown.
type Unfinished struct {
	Seq        uint64    `json:"seq"`
	Time       time.Time `json:"time"`
	CallID     string    `json:"call_id"`
	DecisionID string    `json:"decision_id"`
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`
}
