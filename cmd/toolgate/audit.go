package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/app"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/progress"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy/approval"
)

func auditCommand(e *env) *cobra.Command {
	return group("audit", "read, verify and archive the audit trail", auditTail(e), auditSearch(e), auditExport(e), auditVerify(e), auditArchive(e), auditWitness(e))
}

func auditTail(e *env) *cobra.Command {
	var n int
	var follow bool
	c := command("tail", "print the last records of the trail", func(ctx context.Context, _ []string) error {
		out := &recordPrinter{e: e, follow: follow}
		if e.addr != "" {
			return out.end(e.tailRemote(ctx, n, follow, out))
		}
		return out.end(e.tailLocal(ctx, n, follow, out))
	})
	c.Flags().IntVarP(&n, "lines", "n", 10, "`COUNT` of records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow the trail as records are written")
	c.Flags().StringVar(&e.addr, "addr", "", "`URL` of an admin listener to ask instead")
	return c
}

func (e *env) tailLocal(ctx context.Context, n int, follow bool, out *recordPrinter) error {
	dir, err := e.trail()
	if err != nil {
		return err
	}
	defer e.recordReading(dir)
	for line, err := range audit.Tail(ctx, dir, audit.TailOptions{Records: n, Follow: follow}) {
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return missing(err)
		}
		if err := out.line(line); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) tailRemote(ctx context.Context, n int, follow bool, out *recordPrinter) error {
	path := "/v1/audit/tail?n=" + strconv.Itoa(n)
	if follow {
		path += "&follow=1"
	}
	res, err := e.request(ctx, peopleListener, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := eachLine(ctx, res.Body, out.line); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("reading the trail: %w", err)
	}
	return nil
}

// eachLine calls do with each line of r. It returns the first error, which is io.EOF at the
// end, and nil when ctx has ended.
func eachLine(ctx context.Context, r io.Reader, do func(line []byte) error) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if ctx.Err() != nil {
			return nil //nolint:nilerr // the reader was ended with ctx
		}
		if err == nil {
			err = do(line)
		}
		if err != nil {
			return err
		}
	}
}

func auditVerify(e *env) *cobra.Command {
	var files, anchors []string
	var trailOnly bool
	var archive, tsaCA, witnessKey string
	c := command("verify", "verify every chain of the trail, its signatures, and the checkpoints that others hold", func(ctx context.Context, _ []string) error {
		dir := archive
		if dir == "" {
			state, err := e.stateDir()
			if err != nil {
				return err
			}
			dir = app.TrailDir(state)
		}
		evidence, err := e.evidence(dir, files)
		if err != nil {
			return err
		}
		evidence.Anchors, evidence.Archive = anchors, archive != ""
		roots, err := app.ReadRoots(tsaCA)
		if err != nil {
			return usage(err)
		}
		if roots != nil {
			evidence.Cosigners = append(evidence.Cosigners, audit.TimestampVerifier(roots))
		}
		if witnessKey != "" {
			v, err := audit.ReadWitnessKey(witnessKey)
			if err != nil {
				return usage(err)
			}
			evidence.Cosigners = append(evidence.Cosigners, v)
		}
		rep, err := e.verify(evidence, dir)
		if err != nil {
			return err
		}
		var faults []string
		if !trailOnly && archive == "" {
			faults, err = e.contradictions(ctx, dir, rep, len(files) == 0)
		}
		return errors.Join(err, e.verdict(rep, faults...))
	})
	c.Flags().StringArrayVar(&files, "key", nil, "PEM `FILE` of a public key that signs checkpoints (default: those of the key directory); may be repeated")
	c.Flags().StringArrayVar(&anchors, "anchor", nil, "`FILE|DIR` with checkpoints from an anchor; may be repeated")
	c.Flags().StringVar(&tsaCA, "tsa-ca", "", "PEM `FILE` with root certificates; the notes of anchors need a time-stamp of an authority below them")
	c.Flags().StringVar(&witnessKey, "witness-key", "", "`FILE` with the key of a witness; the notes of anchors need its signature, or a time-stamp with --tsa-ca")
	c.Flags().StringVar(&archive, "archive", "", "verify the archive in `DIR` instead of the trail")
	c.Flags().BoolVar(&trailOnly, "trail-only", false, "do not compare the trail with the store of the state directory")
	return c
}

// verify verifies the trail in dir.
func (e *env) verify(evidence audit.Evidence, dir string) (audit.Report, error) {
	bar := e.progress(false)
	defer bar.End()
	evidence.Progress = bar.Count("verifying", progress.Size(dir))
	rep, err := evidence.Verify(dir)
	return rep, missing(err)
}

// contradictions compares the tickets of the store, where there is one, with the trail.
// authenticate says that the key directory is this machine's.
func (e *env) contradictions(ctx context.Context, trail string, rep audit.Report, authenticate bool) (faults []string, err error) {
	var dir *keys.Dir
	if k := keys.At(e.keysDir()); authenticate && k.Has(keys.Tickets) {
		dir = k
	}
	err = e.withStore(ctx, func(db *store.DB) (err error) {
		faults, _, err = approval.Verify(ctx, db, dir, func() (map[string]approval.Word, time.Time, error) { return lastWords(ctx, trail, rep) })
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return faults, err
}

// lastWords returns the last change of each ticket in the trail, and the time of the
// trail's first record.
func lastWords(ctx context.Context, trail string, rep audit.Report) (map[string]approval.Word, time.Time, error) {
	words, oldest := map[string]approval.Word{}, time.Now()
	for _, c := range rep.Chains {
		if c.First.Before(oldest) {
			oldest = c.First
		}
	}
	for r, err := range audit.NewWatch(trail, audit.KindTicket, time.Time{}).Next(ctx) {
		if errors.Is(err, audit.ErrNoRecord) {
			continue // the trail's own verdict has it
		}
		if err != nil {
			return nil, oldest, err
		}
		if c := r.Change; c != nil && c.Seq >= words[r.Ticket].Seq {
			words[r.Ticket] = approval.Word{Seq: c.Seq, State: approval.State(c.To)}
		}
	}
	return words, oldest, nil
}

// evidence returns the public keys, and the ledger of the trail in dir. Given files, it
// uses these and nothing of this machine's key directory.
func (e *env) evidence(dir string, files []string) (x audit.Evidence, err error) {
	var known []keys.Public
	if len(files) == 0 {
		k := keys.At(e.keysDir())
		own, err := k.Publics(keys.Checkpoints)
		elsewhere, failed := k.Publics(keys.External)
		ledger, unread := audit.FindLedger(k.Path(), dir)
		if err := errors.Join(err, failed, unread); err != nil {
			return x, err
		}
		known, x.Ledger = append(own, elsewhere...), ledger
	}
	x.Keys, err = verifiers(known, files)
	return x, err
}

// verifiers returns the verifiers of checkpoints that the holders of keys signed: those
// known, and those in PEM files.
func verifiers(known []keys.Public, files []string) (found []note.Verifier, err error) {
	for _, file := range files {
		key, err := keys.ReadPublic(file)
		if err != nil {
			return nil, usage(err)
		}
		known = append(known, key)
	}
	for _, key := range known {
		v, err := audit.NewVerifier(key.Key)
		if err != nil {
			return nil, err
		}
		found = append(found, v)
	}
	return found, nil
}

// verified is the outcome of a verification as it is printed.
type verified struct {
	OK    bool     `json:"ok"`
	State []string `json:"state,omitempty"` // contradictions between trail and store
	audit.Report
}

// Records counts the records of all chains.
func (v verified) Records() (n int) {
	for _, c := range v.Chains {
		n += c.Records
	}
	return n
}

func (e *env) verdict(rep audit.Report, faults ...string) error {
	ok := rep.OK() && len(faults) == 0
	err := e.Print("verified", verified{ok, faults, rep})
	if !ok {
		err = errors.Join(err, &exit{code: exitAudit, err: errors.New("the audit trail does not verify")})
	}
	return err
}
