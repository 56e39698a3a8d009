// Package notary proves an audit trail to people who do not trust the holder of the state directory.
//
// A Log is an audit.Log whose heads are signed as Checkpoints, and given to a Ledger and to anchors:
// a DirectoryAnchor keeps the last one of each chain, a WebhookAnchor posts it, and a WitnessAnchor has
// a witness sign it too and keeps both signatures. A Witness is such a witness: toolgate witness
// serves it.
//
//	w, err := notary.OpenWitness(dir, "w.example.org", trusted)
//	http.ListenAndServe(address, w)
//
// Evidence.Verify checks the chains of a trail by themselves and against what was kept elsewhere.
// Archive moves old segments away so that both parts still verify, and RemoveChains removes the chains
// of which nothing is left.
//
// Records are written and read by package audit, which knows nothing of this package. Everything here is
// safe for concurrent use, but for Archive and RemoveChains of one trail.
package notary

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/note"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/files"
)

// Anchor receives checkpoints at a place that the holder of the state directory cannot
// change. Only one goroutine calls it at a time.
type Anchor interface {
	// Publish gives away the signed note of c. It returns when ctx ends at the latest.
	Publish(ctx context.Context, c Checkpoint, signed []byte) error
}

// Anchoring is an Anchor of a Log.
type Anchoring struct {
	Anchor
	Kind  string        // directory, witness, webhook or store, for people
	Name  string        // for messages
	Every time.Duration // least time between two checkpoints; 0 = as they come
}

// Signing says how the checkpoints of a chain are signed. The zero Signing signs none.
type Signing struct {
	Signer  note.Signer // nil = no checkpoints
	Ledger  Ledger      // receives every checkpoint
	Anchors []Anchoring
}

// AnchorState says what an Anchor of a Log has of its chain.
type AnchorState struct {
	Kind string    `json:"kind"`
	Name string    `json:"name"`
	Seq  uint64    `json:"seq,omitempty"` // number of the record at its last checkpoint, 0 = it has none
	Last time.Time `json:"last,omitzero"` // when that checkpoint was made
	// Fault says why it does not have the last checkpoint that it was given, "" = it has it.
	Fault string `json:"fault,omitempty"`
}

// publishTimeout bounds one call of an Anchor, the last ones of a chain included.
const publishTimeout = 10 * time.Second

// publishRetry is how long after a failure an Anchor is tried again.
const publishRetry = 2 * time.Second

// A Log is an audit.Log whose checkpoints are signed. Its methods are safe for concurrent use.
type Log struct {
	*audit.Log
	notary *notary // nil = checkpoints are not signed
}

// Open is audit.Open for a chain whose checkpoints are signed, one for each HEAD. The error also
// reports a first checkpoint that cannot be signed. What cannot be signed or anchored later goes to
// Options.OnError.
func Open(root string, o audit.Options, s Signing) (*Log, error) {
	var n *notary
	if s.Signer != nil {
		n = newNotary(s, o.OnError)
		o.Notary = n
	}
	l, err := audit.Open(root, o)
	if err != nil {
		return nil, err
	}
	return &Log{l, n}, nil
}

// Signing returns how the checkpoints of the chain are signed, the zero value when they are not.
func (l *Log) Signing() Signing {
	if l.notary == nil {
		return Signing{}
	}
	return l.notary.Signing
}

// notary signs the checkpoints of one chain and gives them to the ledger and the
// anchors. It implements audit.Notary: of several ends that are offered while one is
// signed, the last one is signed next.
type notary struct {
	Signing
	dir     string // of the chain
	failed  func(doing string, cause error)
	heads   *mailbox[Checkpoint]
	anchors []*mailbox[signedCheckpoint]
	states  []atomic.Pointer[AnchorState] // of each anchor
	running sync.WaitGroup
	fault   atomic.Pointer[error] // of the last checkpoint; nil = it was signed and kept
}

type signedCheckpoint struct {
	Checkpoint
	note []byte
}

func newNotary(s Signing, failed func(string, error)) *notary {
	if failed == nil {
		failed = func(string, error) {}
	}
	n := &notary{Signing: s, failed: failed, heads: newMailbox[Checkpoint](), states: make([]atomic.Pointer[AnchorState], len(s.Anchors))}
	for i, a := range s.Anchors {
		n.states[i].Store(&AnchorState{Kind: a.Kind, Name: a.Name})
		n.anchors = append(n.anchors, newMailbox[signedCheckpoint]())
	}
	return n
}

// Begin implements audit.Notary. From then on it signs what is offered, until Close.
func (n *notary) Begin(dir string, end audit.Earlier, now time.Time) error {
	n.dir = dir
	if err := n.sign(n.checkpoint(end, now)); err != nil {
		return err
	}
	for i, a := range n.Anchors {
		n.running.Go(func() { n.publish(a, n.anchors[i], &n.states[i]) })
	}
	n.running.Go(func() {
		for c := range n.heads.values {
			if err := n.sign(c); err != nil {
				n.failed("signing a checkpoint", err)
			}
		}
		for _, box := range n.anchors {
			close(box.values)
		}
	})
	return nil
}

// Close implements audit.Notary. It returns when the anchors have the last checkpoint.
func (n *notary) Close() {
	close(n.heads.values)
	n.running.Wait()
}

// Offer implements audit.Notary.
func (n *notary) Offer(end audit.Earlier, now time.Time) { n.heads.put(n.checkpoint(end, now)) }

func (n *notary) checkpoint(end audit.Earlier, now time.Time) Checkpoint {
	return Checkpoint{Trail: n.Ledger.Trail, Instance: end.Instance, Seq: end.Seq, Hash: end.Hash, Time: now}
}

// sign signs a checkpoint and keeps it with the chain and in the ledger.
func (n *notary) sign(c Checkpoint) (err error) {
	defer func() {
		n.fault.Store(nil)
		if err != nil {
			n.fault.Store(&err)
		}
	}()
	signed, err := c.sign(n.Signer)
	if err != nil {
		return err
	}
	err = files.Replace(filepath.Join(n.dir, checkpointName), signed, 0o600)
	if n.Ledger.Dir != "" {
		err = errors.Join(err, DirectoryAnchor(n.Ledger.Dir).Publish(context.Background(), c, signed))
	}
	for _, box := range n.anchors {
		box.put(signedCheckpoint{c, signed})
	}
	return err
}

// publish gives checkpoints to one anchor, at the pace of the anchor: the newest one, again
// after a failure, and the last one in any case.
func (n *notary) publish(a Anchoring, box *mailbox[signedCheckpoint], state *atomic.Pointer[AnchorState]) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	var newest *signedCheckpoint // nil = the anchor has it
	for open := true; open || newest != nil; {
		ready := pause.C
		if newest == nil {
			ready = nil
		}
		if open {
			select {
			case c, more := <-box.values:
				if open = more; more {
					newest = &c
				}
				continue
			case <-ready:
			}
		}
		if n.give(a, newest, state) || !open {
			newest = nil
			pause.Reset(a.Every)
		} else {
			pause.Reset(max(a.Every, publishRetry))
		}
	}
}

// give gives a checkpoint to an anchor, and reports whether the anchor has it.
func (n *notary) give(a Anchoring, c *signedCheckpoint, state *atomic.Pointer[AnchorState]) bool {
	ctx, stop := context.WithTimeout(context.Background(), publishTimeout)
	defer stop()
	err := a.Publish(ctx, c.Checkpoint, c.note)
	now := *state.Load() // only this goroutine writes it
	if err == nil {
		now.Seq, now.Last, now.Fault = c.Seq, c.Time, ""
		state.Store(&now)
		return true
	}
	now.Fault = err.Error()
	state.Store(&now)
	n.failed("anchoring a checkpoint", fmt.Errorf("%s: %w", a.Name, err))
	return false
}

// A mailbox holds the newest value that nobody has taken. One goroutine puts values and
// closes it.
type mailbox[T any] struct{ values chan T }

func newMailbox[T any]() *mailbox[T] { return &mailbox[T]{make(chan T, 1)} }

func (m *mailbox[T]) put(v T) {
	select {
	case <-m.values:
	default:
	}
	m.values <- v // there is room: nobody else puts
}

// Unsigned returns why the last checkpoint was not signed or kept, nil when it was.
// Calls go on meanwhile: their records are chained, and the next checkpoint covers them.
func (l *Log) Unsigned() error {
	if l.notary == nil {
		return nil
	}
	if fault := l.notary.fault.Load(); fault != nil {
		return *fault
	}
	return nil
}

// Anchors returns what each anchor has of the chain. Calls go on while one has a fault, and it is
// given the newest checkpoint again.
func (l *Log) Anchors() []AnchorState {
	if l.notary == nil {
		return nil
	}
	all := make([]AnchorState, len(l.notary.states))
	for i := range all {
		all[i] = *l.notary.states[i].Load()
	}
	return all
}
