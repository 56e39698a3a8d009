package notary_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/files"
)

// openWitness returns a witness for checkpoints of verifier, and the verifier of its own
// signatures.
func openWitness(t *testing.T, dir string, verifier note.Verifier) (*notary.Witness, note.Verifier) {
	t.Helper()
	w, err := notary.OpenWitness(dir, "w.example.org", []note.Verifier{verifier})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	own, err := notary.ReadWitnessKey(filepath.Join(dir, "witness.pub"))
	if err != nil {
		t.Fatal(err)
	}
	return w, own
}

func checkpoint(seq uint64, hash string) notary.Checkpoint {
	return notary.Checkpoint{Trail: "t", Instance: "a", Seq: seq, Hash: strings.Repeat(hash, 32), Time: time.Now()}
}

func sign(t *testing.T, c notary.Checkpoint, signer note.Signer) []byte {
	t.Helper()
	signed, err := notary.SignCheckpoint(c, signer)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

// TestWitnessRefuses holds what a witness signs: nothing that contradicts what it has
// signed, also after it began anew, and nothing without a key that it trusts.
func TestWitnessRefuses(t *testing.T) {
	signer, verifier := newKey(t)
	untrusted, _ := newKey(t)
	dir := filepath.Join(t.TempDir(), "witness")
	w, own := openWitness(t, dir, verifier)
	alarms := 0
	w.OnError = func(error) { alarms++ }
	start := checkpoint(9, "0a")
	start.Segment = 2
	foreign := checkpoint(9, "0a")
	foreign.Trail = "../t"
	unnamed := checkpoint(9, "0a")
	unnamed.Trail = ".."
	other := checkpoint(1, "0d")
	other.Instance = "b"
	for _, tt := range []struct {
		name   string
		body   []byte
		status int
		answer string
	}{
		{"the first", sign(t, checkpoint(5, "0a"), signer), 200, "— w.example.org "},
		{"the same again", sign(t, checkpoint(5, "0a"), signer), 200, "— w.example.org "},
		{"another hash at the same number", sign(t, checkpoint(5, "0b"), signer), 409, "5"},
		{"a lower number", sign(t, checkpoint(4, "0a"), signer), 409, "5"},
		{"a higher number", sign(t, checkpoint(12, "0c"), signer), 200, "— w.example.org "},
		{"an earlier one that it has signed", sign(t, checkpoint(5, "0a"), signer), 409, "12"},
		{"another chain", sign(t, other, signer), 200, "— w.example.org "},
		{"an untrusted key", sign(t, checkpoint(13, "0a"), untrusted), 403, "no trusted key"},
		{"no note", []byte("x"), 403, "no trusted key"},
		{"the starting point of an archive", sign(t, start, signer), 400, "not the checkpoint"},
		{"a trail with the name of a directory", sign(t, unnamed, signer), 400, "not the checkpoint"},
		{"too many bytes", bytes.Repeat([]byte("x"), 70<<10), 400, "too long"},
		{"a trail outside the directory", sign(t, foreign, signer), 400, "not the checkpoint"},
	} {
		status, answer := ask(w, tt.body)
		if status != tt.status || !strings.Contains(answer, tt.answer) {
			t.Errorf("%s: %d %q, want %d %q", tt.name, status, answer, tt.status, tt.answer)
		}
		if status != 200 {
			continue
		}
		if _, err := notary.OpenCheckpoint(append(tt.body, answer...), note.VerifierList(own)); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if alarms != 3 { // strangers cannot fill the log
		t.Errorf("%d alarms", alarms)
	}
	kept, _ := filepath.Glob(dir + "/*.note")
	if len(kept) != 3 || filepath.Base(kept[0]) != "t.a.12.note" {
		t.Errorf("kept %v", kept)
	}
	r := httptest.NewRecorder()
	if w.ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/", http.NoBody)); r.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", r.Code)
	}

	if _, err := notary.OpenWitness(dir, "x", nil); !errors.Is(err, files.ErrHeld) {
		t.Errorf("a second process: %v", err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	again, _ := openWitness(t, dir, verifier)
	if again.Key != w.Key {
		t.Error("the key is another one after a restart")
	}
	for _, c := range []notary.Checkpoint{checkpoint(11, "0a"), checkpoint(12, "0a")} {
		if status, answer := ask(again, sign(t, c, signer)); status != 409 || answer != "12\n" {
			t.Errorf("record %d after a restart: %d %q", c.Seq, status, answer)
		}
	}
}

func ask(w http.Handler, body []byte) (status int, answer string) {
	r := httptest.NewRecorder()
	w.ServeHTTP(r, httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(body)))
	return r.Code, r.Body.String()
}

// TestWitnessKeepsBeforeItSigns holds that a witness signs nothing that it cannot keep,
// that it trusts no file that somebody changed, and that its key is for itself alone.
func TestWitnessKeepsBeforeItSigns(t *testing.T) {
	signer, verifier := newKey(t)
	dir := t.TempDir()
	w, _ := openWitness(t, dir, verifier)
	if info, err := os.Stat(filepath.Join(dir, "witness.key")); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("witness.key: %v, %v", info.Mode(), err)
	}
	failed := 0
	w.OnError = func(error) { failed++ }
	if err := os.WriteFile(filepath.Join(dir, "t.a.5.note"), sign(t, checkpoint(5, "0a"), signer), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _ := ask(w, sign(t, checkpoint(5, "0a"), signer)); status != 500 || failed != 1 {
		t.Errorf("next to a note that the witness did not sign: %d, %d errors", status, failed)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if status, answer := ask(w, sign(t, checkpoint(6, "0a"), signer)); status != 500 || strings.Contains(answer, "—") {
		t.Errorf("without a directory: %d %q", status, answer)
	}
}

// TestWitnessAnchor holds which answers of a witness are kept.
func TestWitnessAnchor(t *testing.T) {
	signer, verifier := newKey(t)
	w, own := openWitness(t, t.TempDir(), verifier)
	_, other := openWitness(t, t.TempDir(), verifier)
	c := checkpoint(5, "0a")
	signed := sign(t, c, signer)
	_, line := ask(w, signed)
	newer := c
	newer.Time = c.Time.Add(time.Second)
	_, wrong := ask(w, sign(t, newer, signer))
	for name, tt := range map[string]struct {
		status int
		answer string
		key    []note.Verifier
		want   string // in the error; "" = the note is kept
	}{
		"a cosignature":                 {200, line, []note.Verifier{own}, ""},
		"one of two keys":               {200, line, []note.Verifier{other, own}, ""},
		"without a key":                 {200, line, nil, ""},
		"of another witness":            {200, line, []note.Verifier{other}, "not a valid cosignature"},
		"of another time":               {200, wrong, []note.Verifier{own}, "not a valid cosignature"},
		"no line":                       {200, "", nil, "not a valid cosignature"},
		"no signature":                  {200, "hello\n", nil, "not a valid cosignature"},
		"half a line":                   {200, strings.TrimSuffix(line, "\n"), nil, "not a valid cosignature"},
		"lines that change the text":    {200, "\n" + line, nil, "not a valid cosignature"},
		"too long":                      {200, strings.Repeat(line, 1000), nil, "too long"},
		"the witness has seen another":  {409, "7\n", nil, "ALARM: the witness has signed a later or another checkpoint"},
		"the key is not trusted":        {403, "no\n", nil, "status 403"},
		"a redirect is not followed":    {307, line, nil, "status 307"},
		"the witness cannot keep notes": {500, line, nil, "status 500"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if body, _ := io.ReadAll(r.Body); !bytes.Equal(body, signed) {
				t.Errorf("posted %q", body)
			}
			rw.Header().Set("Location", "/elsewhere")
			rw.WriteHeader(tt.status)
			_, _ = io.WriteString(rw, tt.answer)
		}))
		dir := t.TempDir()
		anchor := notary.WitnessAnchor{DirectoryAnchor: notary.DirectoryAnchor(dir), URL: server.URL + "/?token=geheim", Verifiers: tt.key}
		err := anchor.Publish(t.Context(), c, signed)
		server.Close()
		kept, _ := os.ReadFile(filepath.Join(dir, "t.a.note"))
		switch {
		case tt.want == "" && (err != nil || !bytes.Equal(kept, append(bytes.Clone(signed), line...))):
			t.Errorf("%s: %v, kept %q", name, err, kept)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "geheim") || kept != nil):
			t.Errorf("%s: %v, want %q; kept %q", name, err, tt.want, kept)
		}
	}
}

// TestWitnessFindsRewrittenChain holds that somebody who has toolgate's key, and can write
// to the state, the ledger and the anchor, cannot rewrite records before a checkpoint that
// a witness keeps, although the witness signs the checkpoint of the rewritten chain.
func TestWitnessFindsRewrittenChain(t *testing.T) {
	s := signTrail(t, "")
	verifier := s.evidence.Keys[0]
	notes, anchor := t.TempDir(), t.TempDir()
	w, own := openWitness(t, notes, verifier)
	server := httptest.NewServer(w)
	defer server.Close()
	publish := func(c notary.Checkpoint) error {
		a := notary.WitnessAnchor{DirectoryAnchor: notary.DirectoryAnchor(anchor), URL: server.URL, Verifiers: []note.Verifier{own}}
		return a.Publish(t.Context(), c, sign(t, c, s.signing.Signer))
	}
	at := func(instance string, n int) notary.Checkpoint { // the checkpoint of record n as the chain is now
		for r, err := range audit.Read(t.Context(), s.root, time.Time{}) {
			if err != nil {
				t.Fatal(err)
			}
			if r.Instance == instance && r.Seq == uint64(n) {
				return notary.Checkpoint{Trail: s.signing.Ledger.Trail, Instance: instance, Seq: r.Seq, Hash: r.Hash, Time: r.Time}
			}
		}
		t.Fatalf("no record %d", n)
		return notary.Checkpoint{}
	}
	for _, c := range []notary.Checkpoint{at("a", 32), at("b", 10), at("b", 20)} {
		if err := publish(c); err != nil {
			t.Fatal(err)
		}
	}
	verdict := func(anchor string) (notary.Report, notary.Verdict) {
		e := notary.Evidence{Keys: s.evidence.Keys, Ledgers: []notary.Ledger{s.signing.Ledger}, Anchors: []string{anchor}, Cosigners: []note.Verifier{own}}
		rep, err := e.Verify(s.root)
		if err != nil {
			t.Fatal(err)
		}
		return rep, rep.Verdicts.Independence
	}
	for _, dir := range []string{anchor, notes} {
		if rep, independence := verdict(dir); !rep.OK() || independence != notary.OK {
			t.Fatalf("%s before: %+v", dir, rep)
		}
	}

	// Record 15 of b changes. The chain, its signed checkpoint, the ledger and the anchor follow.
	seen := 0
	segments, _ := filepath.Glob(s.root + "/b/*.jsonl")
	for _, path := range segments {
		edit(t, path, func(lines [][]byte) [][]byte {
			for i, line := range lines {
				if bytes.Contains(line, []byte(`"call_id":"b13"`)) {
					lines[i], seen = bytes.Replace(line, []byte(`"b13"`), []byte(`"b99"`), 1), seen+1
				}
			}
			return lines
		})
	}
	recompute(t, s.root+"/b", func([]byte) bool { return false })
	if seen != 1 {
		t.Fatalf("%d records were changed", seen)
	}
	last := at("b", 32)
	for _, path := range []string{s.root + "/b/CHECKPOINT", filepath.Join(s.signing.Ledger.Dir, last.Trail+".b.note")} {
		if err := os.WriteFile(path, sign(t, last, s.signing.Signer), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(at("b", 20)); err == nil || !strings.Contains(err.Error(), "ALARM") {
		t.Errorf("the rewritten record 20: %v", err)
	}
	if err := publish(last); err != nil {
		t.Fatalf("the witness cannot know: %v", err)
	}
	if rep, _ := verdict(anchor); !rep.OK() {
		t.Errorf("the last checkpoint alone contradicts nothing: %+v", rep)
	}
	rep, independence := verdict(notes)
	if independence != notary.Broken || rep.Verdicts.Chain != notary.OK || rep.Verdicts.Content != notary.OK {
		t.Errorf("with the notes of the witness: %+v", rep)
	}

	// Notes that the witness did not sign are no evidence.
	if err := os.WriteFile(filepath.Join(anchor, last.Trail+".b.note"), sign(t, last, s.signing.Signer), 0o600); err != nil {
		t.Fatal(err)
	}
	if rep, independence := verdict(anchor); independence != notary.Broken {
		t.Errorf("without a cosignature: %+v", rep)
	}
	if _, err := notary.ReadWitnessKey(filepath.Join(anchor, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing key: %v", err)
	}
}
