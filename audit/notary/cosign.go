package notary

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	cosignature "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"
)

// A WitnessAnchor is a DirectoryAnchor whose notes a witness has signed too (C2SP
// tlog-cosignature, cosignature/v1). A Witness signs no checkpoint that contradicts one
// that it has signed before, also when the holder of toolgate's key asks.
type WitnessAnchor struct {
	DirectoryAnchor
	URL       string
	Verifiers []note.Verifier // one of which must verify the cosignature; none = it is kept as it comes
}

// Publish implements Anchor. A note without a cosignature, or with a bad one, is not kept.
// The error says so when the witness refuses the checkpoint for one that it has seen.
func (a WitnessAnchor) Publish(ctx context.Context, c Checkpoint, signed []byte) error {
	lines, err := post(ctx, a.URL, signed)
	if errors.Is(err, statusError(http.StatusConflict)) {
		err = errors.New("ALARM: the witness has signed a later or another checkpoint of this chain: the trail was rewritten, or somebody else signs with its key")
	}
	if err != nil {
		return fmt.Errorf("asking the witness: %w", err)
	}
	cosigned := append(signed[:len(signed):len(signed)], lines...)
	n, err := note.Open(cosigned, note.VerifierList(a.Verifiers...))
	if unverified, ok := errors.AsType[*note.UnverifiedNoteError](err); ok && len(a.Verifiers) == 0 {
		n, err = unverified.Note, nil
	}
	if err != nil || len(lines) == 0 || n.Text != textOf(signed) {
		return errors.New("asking the witness: the answer is not a valid cosignature")
	}
	return a.DirectoryAnchor.Publish(ctx, c, cosigned)
}

// textOf returns the text of a signed note (C2SP signed-note), with its last newline.
func textOf(signed []byte) string {
	text, _, _ := bytes.Cut(signed, []byte("\n\n"))
	return string(text) + "\n"
}

// ReadWitnessKey returns the verifier of the cosignatures of a witness, whose key is in a
// file as NAME+HASH+KEY (C2SP signed-note).
func ReadWitnessKey(file string) (note.Verifier, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading key of a witness: %w", err)
	}
	v, err := cosignature.NewVerifierForCosignatureV1(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("reading key of a witness: %s: %w", file, err)
	}
	return v, nil
}
