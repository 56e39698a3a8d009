package chain

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

// hashMember separates the hashed bytes of a line from their hash.
const hashMember = `,"hash":"`

// tailLen is the length of a line's end: hashMember, the hash, `"}`.
const tailLen = len(hashMember) + 2*sha256.Size + len(`"}`)

// Link identifies a record of a chain. The zero Link is before the first.
type Link struct {
	Seq  uint64            // number of the record
	Hash [sha256.Size]byte // of the record
}

// AppendLine appends the whole line, with its line feed, of the record that
// follows at, and returns the link of that record. body has the members of the record between
// seq and instance, without braces.
func AppendLine(b []byte, at Link, instance string, body []byte) ([]byte, Link) {
	start := len(b)
	b = append(b, `{"v":1,"seq":`...)
	b = strconv.AppendUint(b, at.Seq+1, 10)
	b = append(append(b, ','), body...)
	b = append(append(b, `,"instance":"`...), instance...)
	b = append(b, `","prev":"`...)
	b = append(hex.AppendEncode(b, at.Hash[:]), `"}`...)
	next := Link{Seq: at.Seq + 1, Hash: sha256.Sum256(b[start:])}
	b = append(b[:len(b)-1], hashMember...)
	b = hex.AppendEncode(b, next.Hash[:])
	return append(b, "\"}\n"...), next
}

// SplitHash returns the hash computed over a line and the hash that the line
// states. The line has no line feed. ok is false when the line does not end with a
// hash member in the form of AppendLine; the hashes are then a best effort.
func SplitHash(line []byte) (computed, stated [sha256.Size]byte, ok bool) {
	cut := len(line) - tailLen
	if cut < 0 {
		return computed, stated, false
	}
	h := sha256.New()
	h.Write(line[:cut])
	h.Write([]byte{'}'})
	h.Sum(computed[:0])
	text := line[cut+len(hashMember) : len(line)-2]
	_, err := hex.Decode(stated[:], text)
	ok = err == nil && !bytes.ContainsAny(text, "ABCDEF") &&
		bytes.HasPrefix(line[cut:], []byte(hashMember)) && bytes.HasSuffix(line, []byte(`"}`))
	return computed, stated, ok
}
