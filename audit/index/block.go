package index

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"strings"
	"time"
)

// Bounds of a block. A posting is the hash of a term and the number of a row in its block:
// hashBits and rowBits.
const (
	hashBits, rowBits = 40, 12
	maxRows           = 1 << rowBits
	rowsPerPart       = 64
	wholeRows         = 128 // a block up to this size has all its postings in one part
	partBits          = 6   // of a larger one, the first bits of the hash are the part
)

// The numbers of parts.
const (
	wholePart = 0               // all postings
	firstPart = 1               // postings whose hash begins with 0, and so on
	rowPart   = 1 + 1<<partBits // the first rows, and so on
)

var errDamaged = errors.New("the index of calls is damaged")

// An entry is one row of a block.
type entry struct {
	Call

	change bool     // it is no call but a change of Call.Ticket
	added  int64    // when it came into the index, milliseconds since 1970
	terms  []uint64 // hashes; ascending in an entry of a block
}

// newer orders entries as lists show them: the newest first, and of one call the one that knows
// its outcome.
func newer(a, b *entry) int {
	if n := b.Time.Compare(a.Time); n != 0 {
		return n
	}
	if n := strings.Compare(b.ID, a.ID); n != 0 {
		return n
	}
	return cmp.Compare(b.OutcomeSeq, a.OutcomeSeq)
}

// sameCall reports whether two entries that newer has put next to each other are of one call.
func sameCall(a, b *entry) bool {
	return a.ID == b.ID && a.Time.Equal(b.Time) && a.change == b.change && (!a.change || a.OutcomeSeq == b.OutcomeSeq)
}

// A part is a row of call_parts: maxParts times the block and the number of the part, and what it has.
type part struct {
	id   int64
	data []byte
}

const maxParts = 256

func (p *part) number() int { return int(p.id % maxParts) }

// encode returns the parts of the block with an ID and entries, which are at most maxRows and ordered from the oldest on.
func encode(id int64, entries []*entry) (parts []part) {
	n := 0
	for _, e := range entries {
		n += len(e.terms)
	}
	postings := make([]uint64, 0, n)
	for row, e := range entries {
		for _, hash := range e.terms {
			postings = append(postings, hash<<rowBits|uint64(row))
		}
	}
	postings = slices.Compact(sorted(postings))
	for len(postings) > 0 {
		number, n := partOf(postings[0]>>rowBits, len(entries)), len(postings)
		if number != wholePart {
			n, _ = slices.BinarySearch(postings, uint64(number-firstPart+1)<<(hashBits+rowBits-partBits))
		}
		p, last := part{id: id*maxParts + int64(number), data: make([]byte, 0, 6*n)}, uint64(0)
		for _, posting := range postings[:n] {
			p.data, last = binary.AppendUvarint(p.data, posting-last), posting
		}
		parts, postings = append(parts, p), postings[n:]
	}
	number, known := id*maxParts+rowPart, map[string]uint64{}
	for some := range slices.Chunk(entries, rowsPerPart) {
		clear(known)
		parts = append(parts, part{number, appendRows(make([]byte, 0, 192*len(some)), some, known)})
		number++
	}
	return parts
}

// sorted returns postings, whose rows ascend, in ascending order. Sorting their hashes digit by digit takes
// a fifth of what comparing takes.
func sorted(postings []uint64) []uint64 {
	const digit = 10 // bits; four of them are a hash. More would not stay in the processor's cache
	if len(postings) < 8<<digit {
		slices.Sort(postings)
		return postings
	}
	to := make([]uint64, len(postings))
	for shift := rowBits; shift < hashBits+rowBits; shift += digit {
		var places [1 << digit]int
		for _, p := range postings {
			places[p>>shift&(1<<digit-1)]++
		}
		at := 0
		for i, n := range places {
			places[i], at = at, at+n
		}
		for _, p := range postings {
			d := p >> shift & (1<<digit - 1)
			to[places[d]] = p
			places[d]++
		}
		postings, to = to, postings
	}
	return postings
}

// partOf returns the number of the part that has the postings of a hash, in a block of a size.
func partOf(hash uint64, size int) int {
	if size <= wholeRows {
		return wholePart
	}
	return firstPart + int(hash>>(hashBits-partBits))
}

// eachPosting calls visit with the postings in data, ascending, until it returns false.
func eachPosting(data []byte, visit func(hash uint64, row int) bool) error {
	last := uint64(0)
	for len(data) > 0 {
		delta, n := binary.Uvarint(data)
		if n <= 0 {
			return errDamaged
		}
		last, data = last+delta, data[n:]
		if !visit(last>>rowBits, int(last&(maxRows-1))) {
			break
		}
	}
	return nil
}

const callTexts = 14

// texts are the members of a row that are texts.
func (c *Call) texts() [callTexts]*string {
	return [callTexts]*string{
		&c.ID, &c.Instance, &c.Principal, &c.Person, &c.Method, &c.Tool, &c.Server, &c.Effect, &c.Rule, &c.Outcome, &c.Code, &c.Stage, &c.Ticket,
		&c.Account,
	}
}

// appendRows appends rows to data. A text is written out once; where it comes again there is the number of
// the first, which known, empty at first, has. Times are differences, so that most numbers are small.
func appendRows(data []byte, entries []*entry, known map[string]uint64) []byte {
	count := uint64(0) // of texts that were written out
	write := func(s string) {
		count++
		data = append(binary.AppendUvarint(append(data, 0), uint64(len(s))), s...)
	}
	text := func(s string) uint64 {
		n, again := known[s]
		if again {
			data = binary.AppendUvarint(data, n)
			return n
		}
		write(s)
		known[s] = count
		return count
	}
	at := int64(0)
	var above [callTexts]struct { // the texts of the row before
		text   string
		number uint64
	}
	for _, e := range entries {
		now := e.Time.UnixNano()
		data = binary.AppendVarint(binary.AppendVarint(data, now-at), e.added-now/1e6)
		at = now
		for i, s := range e.texts() {
			switch last := &above[i]; {
			case i == 0: // IDs do not come again
				write(*s)
			case last.number > 0 && last.text == *s:
				data = binary.AppendUvarint(data, last.number)
			default:
				last.text, last.number = *s, text(*s)
			}
		}
		for _, n := range []uint64{e.flags(), e.DecisionSeq, e.OutcomeSeq, e.duration(), uint64(len(e.Roles))} {
			data = binary.AppendUvarint(data, n)
		}
		for _, role := range e.Roles {
			text(role)
		}
	}
	return data
}

func (e *entry) flags() uint64 {
	if e.change {
		return 1
	}
	return 0
}

func (c *Call) duration() uint64 { return uint64(math.Round(max(0, c.DurationMS) * 1000)) } // microseconds

// A rowReader reads what appendRows wrote. After damage it reads zeros.
type rowReader struct {
	data    []byte
	known   []string
	damaged bool
}

func (r *rowReader) number() uint64 {
	v, n := binary.Uvarint(r.data)
	if n <= 0 {
		r.data, r.damaged = nil, true
		return 0
	}
	r.data = r.data[n:]
	return v
}

func (r *rowReader) signed() int64 {
	v := r.number() // as binary.Varint
	return int64(v>>1) ^ -int64(v&1)
}

func (r *rowReader) text() string {
	if n := r.number(); n > 0 {
		if n > uint64(len(r.known)) {
			r.damaged = true
			return ""
		}
		return r.known[n-1]
	}
	n := r.number()
	if r.damaged || n > uint64(len(r.data)) {
		r.damaged = true
		return ""
	}
	s := string(r.data[:n])
	r.data, r.known = r.data[n:], append(r.known, s)
	return s
}

// decodeRows returns the entries of one part, without their terms.
func decodeRows(data []byte) ([]*entry, error) {
	r, at, entries := rowReader{data: data}, int64(0), []*entry(nil)
	for len(r.data) > 0 && !r.damaged && len(entries) < rowsPerPart {
		e := new(entry)
		at += r.signed()
		e.Time, e.added = time.Unix(0, at).UTC(), at/1e6+r.signed()
		for _, s := range e.texts() {
			*s = r.text()
		}
		e.change = r.number() == 1
		e.DecisionSeq, e.OutcomeSeq, e.DurationMS = r.number(), r.number(), float64(r.number())/1000
		for n := r.number(); n > 0 && !r.damaged; n-- {
			e.Roles = append(e.Roles, r.text())
		}
		entries = append(entries, e)
	}
	if r.damaged || len(r.data) > 0 {
		return nil, errDamaged
	}
	return entries, nil
}

// decode returns the entries of a block, from the oldest on. parts are all of it, ordered.
func decode(parts []part) (entries []*entry, err error) {
	for _, p := range parts {
		if p.number() < rowPart {
			continue
		}
		some, err := decodeRows(p.data)
		if err != nil {
			return nil, err
		}
		entries = append(entries, some...)
	}
	for _, p := range parts {
		if p.number() >= rowPart {
			continue
		}
		sound := true
		err := eachPosting(p.data, func(hash uint64, row int) bool {
			if sound = row < len(entries); sound {
				entries[row].terms = append(entries[row].terms, hash)
			}
			return sound
		})
		if err != nil || !sound {
			return nil, errDamaged
		}
	}
	return entries, nil
}
