package trail

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/text"
)

// maxRemoved bounds the chains that one archiving removes: the next one removes the others.
const maxRemoved = 10_000

// Archive moves records from before a time from the trail in dir to an archive, and removes
// the chains of which nothing is left. rep is what verifying the trail has shown. trail is a
// chain of this process: it records what was archived and by whom, and is closed, so that its
// signed checkpoint covers the record before the first directory goes. It fails closed: without
// that checkpoint no directory is removed.
func Archive(trail *notary.Log, rep notary.Report, dir, to string, before time.Time, by string) (notary.Archived, error) {
	signing := trail.Signing()
	done, err := notary.Archive(dir, to, before, time.Now(), signing.Ledger.Trail, signing.Signer)
	gone := append(rep.Archivable(), done.Removed...)
	done.Removed = gone[:min(len(gone), maxRemoved)]
	event := &audit.Event{Name: audit.EventArchived, Reason: fmt.Sprintf("%s from before %s to %s", text.Count(done.Segments, "segment"), before.UTC().Format(time.RFC3339), to)}
	for _, e := range done.Removed {
		event.Removed = append(event.Removed, e.String())
	}
	err = errors.Join(err, trail.Write(audit.KindEvent, &audit.Record{Principal: audit.Principal{Subject: by}, Event: event}), trail.Close())
	if err = errors.Join(err, trail.Unsigned()); err != nil {
		return done, err
	}
	return done, notary.RemoveChains(dir, signing.Ledger, slices.Concat(rep.Removed, done.Removed))
}
