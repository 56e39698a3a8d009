// Package artifact keeps the large and binary parts of results: bytes under
// the hash of their content, in files below one directory, and in the state
// file who was given them and until when.
//
// Several processes share directory and state file. These are the rules that
// keep the two together:
//
//   - A file appears under its name, and vanishes from it, only inside a write
//     transaction of the state file, of which there is one at a time among all
//     processes. A sweep deletes the row, then the file, then commits; a Put
//     writes its bytes to a draft beforehand, and in its transaction renames
//     the draft into place, or sees that the file is there, before it commits
//     the row. So no sweep takes a file from under a row that a Put commits.
//   - What a crash can leave is harmless. Before a sweep's commit it leaves a
//     row without a file, which is ErrNotFound and which the next Put of those
//     bytes mends; before a Put's commit, a file without a row, which the next
//     Open removes.
//   - A draft is locked for as long as its process writes it, so a sweep knows
//     the drafts of dead processes without asking a clock.
package artifact

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"mime"
	"strings"
	"time"
)

// MaxSize is how many bytes one artifact may have: 64 MiB.
const MaxSize = 64 << 20

// OctetStream is the media type of what has none, or none that can be read.
const OctetStream = "application/octet-stream"

// Errors of the methods of [Store], for errors.Is.
var (
	// ErrNotFound: there is no such artifact, or it has expired, or its file is
	// gone, or the principal was not given it. Nobody can tell which.
	ErrNotFound = errors.New("no such artifact")
	// ErrTooLarge: more bytes than MaxSize, or than the store may hold at all.
	ErrTooLarge = errors.New("artifact is too large")
	// ErrDamaged: the file is there and is not what was put. The next Put of
	// those bytes mends it.
	ErrDamaged = errors.New("the stored artifact is damaged")
	// ErrNobody: a Put for a principal without a subject.
	ErrNobody = errors.New("an artifact needs an owner")
)

// Artifact says what one principal was given. It is a copy.
type Artifact struct {
	ID      string    // "sha256:<hex>" of the bytes
	Type    string    // media type, as the principal's first Put named it
	Size    int64     // bytes
	Created time.Time // when the principal was first given it; UTC
}

const (
	idPrefix = "sha256:"
	hexSize  = 2 * sha256.Size
)

// ID gives the id of data.
func ID(data []byte) string {
	sum := sha256.Sum256(data)
	return idPrefix + hex.EncodeToString(sum[:])
}

// ValidID reports whether id is "sha256:" and 64 lower-case hexadecimal
// digits. Nothing else is ever looked up.
func ValidID(id string) bool {
	digits, ok := strings.CutPrefix(id, idPrefix)
	return ok && validName(digits)
}

func validName(name string) bool {
	return len(name) == hexSize && strings.Trim(name, "0123456789abcdef") == ""
}

// maxType bounds a media type; longer ones are somebody's mistake.
const maxType = 255

// mediaType gives given in its canonical spelling, and OctetStream for what
// package mime cannot read.
func mediaType(given string) string {
	kind, params, err := mime.ParseMediaType(given)
	if err != nil || len(given) > maxType || !strings.Contains(kind, "/") {
		return OctetStream
	}
	text := mime.FormatMediaType(kind, params)
	if text == "" || len(text) > maxType {
		return OctetStream
	}
	return text
}
