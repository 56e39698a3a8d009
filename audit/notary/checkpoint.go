package notary

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit/chain"
	"github.com/toolgate/toolgate/internal/files"
)

// Checkpoint states which record of a chain is the last at a time, or, with Segment,
// where a chain begins after its older records were archived. It is signed as a note of
// C2SP (signed-note): the text is that of Checkpoint.text.
type Checkpoint struct {
	Trail    string // see Ledger
	Instance string
	Seq      uint64
	Hash     string // of record Seq, 64 hexadecimal digits in lower case
	Time     time.Time
	Segment  int // of a starting point: the first segment that remains; 0 = the end of a chain
}

// The names of signed notes in the directory of a chain.
const (
	checkpointName = "CHECKPOINT"
	startName      = "START"
)

// KeyName is the name of every key that signs checkpoints, in notes and public keys.
const KeyName = "toolgate"

// text returns the form of c that is signed: an origin that names trail and chain, the
// number of the record, its hash in base64, and lines of a name and a value.
func (c Checkpoint) text() string {
	hash, _ := hex.DecodeString(c.Hash)
	text := fmt.Sprintf("toolgate/audit/%s/%s\n%d\n%s\ntime %s\n", c.Trail, c.Instance, c.Seq,
		base64.StdEncoding.EncodeToString(hash), c.Time.UTC().Format(time.RFC3339Nano))
	if c.Segment > 0 {
		text += fmt.Sprintf("start %d\n", c.Segment)
	}
	return text
}

var errNotCheckpoint = errors.New("the note is not a checkpoint of an audit trail")

// ParseCheckpoint reads the text of a note, whoever has signed it. The error reports a text that is not
// the one form of a checkpoint.
func ParseCheckpoint(text string) (c Checkpoint, err error) {
	lines := strings.Split(text, "\n")
	if len(lines) < 5 {
		return c, errNotCheckpoint
	}
	origin := strings.Split(lines[0], "/")
	if len(origin) == 4 {
		c.Trail, c.Instance = origin[2], origin[3]
	}
	hash, _ := base64.StdEncoding.DecodeString(lines[2])
	c.Hash = hex.EncodeToString(hash)
	c.Seq, _ = strconv.ParseUint(lines[1], 10, 64)
	at, _ := strings.CutPrefix(lines[3], "time ")
	c.Time, _ = time.Parse(time.RFC3339Nano, at)
	if segment, ok := strings.CutPrefix(lines[4], "start "); ok {
		c.Segment, _ = strconv.Atoi(segment)
	}
	if c.text() != text || !chain.IsName(c.Instance) { // one text for each checkpoint
		return Checkpoint{}, errNotCheckpoint
	}
	return c, nil
}

// sign returns the signed note of c.
func (c Checkpoint) sign(signer note.Signer) ([]byte, error) {
	signed, err := note.Sign(&note.Note{Text: c.text()}, signer)
	if err != nil {
		return nil, fmt.Errorf("signing checkpoint: %w", err)
	}
	return signed, nil
}

// OpenCheckpoint verifies a signed note and returns its checkpoint. The note must be
// signed by one of keys.
func OpenCheckpoint(signed []byte, keys note.Verifiers) (Checkpoint, error) {
	n, err := note.Open(signed, keys)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("reading checkpoint: %w", err)
	}
	c, err := ParseCheckpoint(n.Text)
	if err != nil {
		return c, fmt.Errorf("reading checkpoint: %w", err)
	}
	return c, nil
}

// NewSigner returns the signer of checkpoints with an Ed25519 key, in this process or
// elsewhere. It fails for other keys.
func NewSigner(key crypto.Signer) (note.Signer, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok {
		return nil, errors.New("reading signing key: it is not an Ed25519 key")
	}
	verifier, err := NewVerifier(public)
	if err != nil {
		return nil, err
	}
	return signer{verifier, key}, nil
}

// NewVerifier returns the verifier of the checkpoints that the holder of a key signed.
func NewVerifier(public ed25519.PublicKey) (note.Verifier, error) {
	text, err := note.NewEd25519VerifierKey(KeyName, public)
	if err != nil {
		return nil, fmt.Errorf("reading public key: %w", err)
	}
	return note.NewVerifier(text)
}

// signer is a note.Signer of a key. It verifies what it signs: the key may be elsewhere.
type signer struct {
	note.Verifier
	key crypto.Signer
}

// Sign implements note.Signer.
func (s signer) Sign(text []byte) ([]byte, error) {
	signature, err := s.key.Sign(rand.Reader, text, crypto.Hash(0))
	if err == nil && !s.Verify(text, signature) {
		err = errors.New("the signature is not that of the public key")
	}
	return signature, err
}

// Ledger is a directory outside the state directory with the last checkpoint of each
// chain of one trail. It shows that a trail was cut, emptied or replaced by an older
// copy, to whoever cannot write to the ledger as well. A zero Ledger has no checkpoints.
type Ledger struct {
	Dir   string
	Trail string // random name of the trail, in its checkpoints
}

// OpenLedger returns the ledger of the trail in root, below dir, which is created when
// it is missing.
func OpenLedger(dir, root string) (Ledger, error) {
	path, err := ledgerPath(dir, root)
	if err == nil {
		err = os.MkdirAll(path, 0o700)
	}
	if err != nil {
		return Ledger{}, fmt.Errorf("opening ledger: %w", err)
	}
	for { // the first process names the trail
		l, err := FindLedger(dir, root)
		if err != nil || l.Trail != "" {
			return l, err
		}
		err = files.Create(filepath.Join(path, "ID"), []byte(strings.ToLower(rand.Text())+"\n"), 0o600)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return Ledger{}, fmt.Errorf("opening ledger: %w", err)
		}
	}
}

// FindLedger returns the ledger of the trail in root; the zero Ledger when there is none.
func FindLedger(dir, root string) (Ledger, error) {
	path, err := ledgerPath(dir, root)
	if err != nil {
		return Ledger{}, fmt.Errorf("reading ledger: %w", err)
	}
	id, err := os.ReadFile(filepath.Join(path, "ID"))
	switch name := strings.TrimSpace(string(id)); {
	case errors.Is(err, os.ErrNotExist):
		return Ledger{}, nil
	case err == nil && !chain.IsName(name):
		return Ledger{}, fmt.Errorf("reading ledger %s: bad name of a trail", path)
	case err != nil:
		return Ledger{}, fmt.Errorf("reading ledger: %w", err)
	default:
		return Ledger{path, name}, nil
	}
}

// ledgerPath returns the directory of a trail's ledger. The path of the trail counts, so
// that an emptied or exchanged trail is still the same one.
func ledgerPath(dir, root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(root)); err == nil {
		root = filepath.Join(parent, filepath.Base(root))
	}
	sum := sha256.Sum256([]byte(root))
	return filepath.Join(dir, "trails", hex.EncodeToString(sum[:8])), nil
}
