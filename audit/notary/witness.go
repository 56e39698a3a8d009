package notary

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/internal/files"
)

// A Witness is an HTTP handler that signs the checkpoints of trails, each the body of a
// POST, and answers with the line of its signature (C2SP cosignature/v1). It keeps what it
// signs in files <trail>.<instance>.<seq>.note, which are evidence for Evidence.Anchors.
// It signs nothing below the last number of a chain, and no two hashes with one number.
// It cannot know whether a later record follows from those before: Verify does, with the
// files. A Witness is safe for concurrent use; one process at a time has a directory.
type Witness struct {
	Key     string            // verifies its signatures: NAME+HASH+KEY
	OnError func(error)       // receives what only the holder of a trusted key can cause: contradictions and failures; nil = nobody
	dir     string            // of the notes and the key
	lock    *os.File          // of dir
	trusted note.Verifiers    // of the signers of checkpoints
	signer  note.Signer       // its own
	own     note.Verifiers    // of signer
	mu      sync.Mutex        // guards last, and the files
	last    map[string]uint64 // number that was signed last, by <trail>.<instance>
}

// The files of a witness next to its notes.
const (
	witnessSecret = "witness.key"
	witnessPublic = "witness.pub"
)

// trailName is the form of the names of trails, which become names of files.
var trailName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

// errOtherCheckpoint is why a Witness refuses a checkpoint.
var errOtherCheckpoint = errors.New("the witness has signed another checkpoint")

// OpenWitness returns the witness in dir for checkpoints signed by one of trusted. At the
// first start it makes dir, and a key with a name. The error is files.ErrHeld when
// another process has dir.
func OpenWitness(dir, name string, trusted []note.Verifier) (w *Witness, err error) {
	w = &Witness{dir: dir, trusted: note.VerifierList(trusted...), last: map[string]uint64{}}
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening witness: %w", err)
	}
	if w.lock, err = os.OpenFile(filepath.Join(dir, "LOCK"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return nil, fmt.Errorf("opening witness: %w", err)
	}
	if err = files.TryLock(w.lock); err == nil {
		err = w.readKey(name)
	}
	if err == nil {
		err = w.readNumbers()
	}
	if err != nil {
		return nil, fmt.Errorf("opening witness: %w", errors.Join(err, w.Close()))
	}
	return w, nil
}

// Close gives up the directory. Requests must have ended.
func (w *Witness) Close() error { return w.lock.Close() }

// readKey reads the key, a secret and a public line, or makes it.
func (w *Witness) readKey(name string) error {
	path := filepath.Join(w.dir, witnessSecret)
	secret, public, err := note.GenerateKey(rand.Reader, name)
	if err != nil {
		return err
	}
	if err := files.Create(path, []byte(secret+"\n"+public+"\n"), 0o600); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	secret, public, _ = strings.Cut(strings.TrimSpace(string(text)), "\n")
	signer, err := cosignature.NewSignerForCosignatureV1(secret)
	if err != nil {
		return fmt.Errorf("%s: %w", witnessSecret, err)
	}
	w.signer, w.own = signer, note.VerifierList(signer.Verifier())
	if w.Key, err = cosignature.VKeyToCosignatureV1(public); err != nil {
		return fmt.Errorf("%s: %w", witnessSecret, err)
	}
	return files.Replace(filepath.Join(w.dir, witnessPublic), []byte(w.Key+"\n"), 0o644)
}

// readNumbers reads from the names of the notes what was signed last.
func (w *Witness) readNumbers() error {
	files, err := os.ReadDir(w.dir)
	for _, f := range files {
		name := strings.TrimSuffix(f.Name(), ".note")
		seq := filepath.Ext(name)
		if n, err := strconv.ParseUint(strings.TrimPrefix(seq, "."), 10, 64); err == nil {
			chain := strings.TrimSuffix(name, seq)
			w.last[chain] = max(w.last[chain], n)
		}
	}
	return err
}

// ServeHTTP answers 403 to a note that no trusted key has signed, and 409, with the last
// number of the chain, to one that contradicts what it has signed. It fails closed: what
// cannot be kept is not signed.
func (w *Witness) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	status, answer, err := w.answer(rw, r)
	if err != nil && w.OnError != nil {
		w.OnError(err)
	}
	rw.Header().Set("Content-Type", "text/plain; charset=utf-8")
	rw.WriteHeader(status)
	_, _ = io.WriteString(rw, answer+"\n")
}

//nolint:nilerr // a bad request is its client's error
func (w *Witness) answer(rw http.ResponseWriter, r *http.Request) (status int, answer string, err error) {
	if r.Method != http.MethodPost {
		return http.StatusMethodNotAllowed, "post a signed checkpoint", nil
	}
	signed, err := io.ReadAll(http.MaxBytesReader(rw, r.Body, maxReply))
	if err != nil {
		return http.StatusBadRequest, "the note breaks off or is too long", nil
	}
	n, err := note.Open(signed, w.trusted)
	if err != nil {
		return http.StatusForbidden, "no trusted key has signed the note", nil
	}
	c, err := ParseCheckpoint(n.Text)
	if err != nil || c.Segment > 0 || !trailName.MatchString(c.Trail) {
		return http.StatusBadRequest, "the note is not the checkpoint of a chain", nil
	}
	last, line, err := w.cosign(n, c)
	switch {
	case errors.Is(err, errOtherCheckpoint):
		return http.StatusConflict, strconv.FormatUint(last, 10), fmt.Errorf("refusing record %d of chain %s.%s after record %d: %w", c.Seq, c.Trail, c.Instance, last, err)
	case err != nil:
		return http.StatusInternalServerError, "the note cannot be kept", err
	}
	return http.StatusOK, line, nil
}

// cosign signs and keeps a checkpoint, and returns the last number of its chain and the
// line of the signature.
func (w *Witness) cosign(n *note.Note, c Checkpoint) (last uint64, line string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	chain := c.Trail + "." + c.Instance
	if last = w.last[chain]; c.Seq < last {
		return last, "", errOtherCheckpoint
	}
	signed, err := note.Sign(&note.Note{Text: n.Text, Sigs: n.Sigs}, w.signer)
	if err != nil {
		return last, "", err
	}
	path := filepath.Join(w.dir, fmt.Sprintf("%s.%d.note", chain, c.Seq))
	if err = files.Create(path, signed, 0o600); errors.Is(err, fs.ErrExist) {
		err = w.same(path, c)
	}
	if err != nil {
		return last, "", err
	}
	w.last[chain] = c.Seq
	lines := strings.Split(strings.TrimSuffix(string(signed), "\n"), "\n")
	return c.Seq, lines[len(lines)-1], nil
}

// same compares c with the note of its number that was signed before, which stays.
func (w *Witness) same(path string, c Checkpoint) error {
	signed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	kept, err := OpenCheckpoint(signed, w.own)
	if err == nil && kept.Hash != c.Hash {
		err = errOtherCheckpoint
	}
	return errors.Join(err, files.SyncDir(w.dir))
}
