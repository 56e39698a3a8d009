package audit

import (
	"maps"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// Bounds of a Fold.
const (
	foldInterval = 10 * time.Second
	foldKinds    = 1024
)

// Fold records floods of acts of one kind: same name, reason, principal, source,
// credential, ticket and server. The first act has a record of its own. Every 10 seconds, one event counts
// the acts that followed. A record without a count stands for one act, so the sum over
// all records is the number of acts. A process that is killed loses the counts of its
// last interval. A Fold is safe for concurrent use.
type Fold struct {
	write func(Kind, *Record) error
	stop  chan struct{}
	done  chan struct{}

	mu    sync.Mutex // protects the field below
	kinds map[foldKey]*folded
}

type foldKey struct{ name, reason, source, credential, subject, tenant, ticket, server string }

type folded struct {
	first Record // of the first act
	count int    // acts that no record stands for yet
}

// NewFold returns a Fold that writes with write, and tries again at the next interval
// when that fails. The caller must Close it before the log.
func NewFold(write func(Kind, *Record) error) *Fold {
	f := &Fold{write: write, stop: make(chan struct{}), done: make(chan struct{}), kinds: make(map[foldKey]*folded)}
	go f.run()
	return f
}

// Add counts one act. Beyond 1,024 kinds in an interval, those of one name are counted
// together, as of nobody and from "others".
func (f *Fold) Add(who Principal, e Event) { f.AddRecord(Record{Principal: who, Event: &e}) }

// AddRecord counts one act, as Add does, whose record has the principal, ticket, server
// and event of r.
func (f *Fold) AddRecord(r Record) {
	f.mu.Lock()
	key := foldKey{r.Event.Name, r.Event.Reason, r.Event.Source, r.Event.Credential, r.Principal.Subject, r.Principal.Tenant, r.Ticket, r.Server}
	known := f.kinds[key]
	if known == nil && len(f.kinds) >= foldKinds {
		r = Record{Event: &Event{Name: r.Event.Name, Source: "others"}}
		key = foldKey{name: r.Event.Name, source: r.Event.Source}
		known = f.kinds[key]
	}
	first := known == nil
	if first {
		known = &folded{first: r}
		f.kinds[key] = known
	} else {
		known.count++
	}
	f.mu.Unlock()
	if first && f.write(KindEvent, &r) != nil {
		f.mu.Lock()
		known.count++
		f.kinds[key] = known
		f.mu.Unlock()
	}
}

// run writes what was counted, every interval and at the end.
func (f *Fold) run() {
	defer close(f.done)
	tick := time.NewTicker(wait.Beat(foldInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			f.flush()
			tick.Reset(wait.Beat(foldInterval))
		case <-f.stop:
			f.flush()
			return
		}
	}
}

// flush writes an event for each kind that was counted, and forgets the others.
func (f *Fold) flush() {
	f.mu.Lock()
	all := maps.Clone(f.kinds)
	f.mu.Unlock()
	for key, kind := range all {
		f.mu.Lock()
		n := kind.count
		if kind.count = 0; n == 0 {
			delete(f.kinds, key)
		}
		f.mu.Unlock()
		if n == 0 {
			continue
		}
		r, e := kind.first, *kind.first.Event
		e.Count = n
		r.Event = &e
		if f.write(KindEvent, &r) != nil {
			f.mu.Lock()
			kind.count += n
			f.mu.Unlock()
		}
	}
}

// Close writes what was counted and ends the Fold.
func (f *Fold) Close() {
	close(f.stop)
	<-f.done
}
