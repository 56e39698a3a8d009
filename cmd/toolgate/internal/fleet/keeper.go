package fleet

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/internal/wait"
)

const (
	mostQueued  = 64 << 10 // events that wait to be written or removed
	queuedBytes = 16 << 20 // of those to be written
	batch       = 256      // events written or removed in one trip
	retryEvery  = time.Second
)

// The hash of a session has its owner, the ID of a replica as text, and its sealed record.

// findScript answers the replica that has the session KEYS[1], which is ARGV[1] unless another
// one took it over, and its address, "" for a replica that is gone. ARGV[2] begins their keys.
const findScript = `
local owner = redis.call('HGET', KEYS[1], 'owner') or ARGV[1]
return owner .. ' ' .. (redis.call('GET', ARGV[2] .. owner) or '')`

// keepScript makes ARGV[1] the owner of the session KEYS[1], with the record ARGV[3], for ARGV[4]
// milliseconds, unless its owner is another replica that is not gone. When ARGV[5] is 1, there must
// be another owner. It answers the owner, "" for none.
const keepScript = `
local owner = redis.call('HGET', KEYS[1], 'owner')
if ARGV[5] == '1' and (not owner or owner == ARGV[1]) then return '' end
if owner and owner ~= ARGV[1] and redis.call('EXISTS', ARGV[2] .. owner) == 1 then return owner end
redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'record', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return ARGV[1]`

// Shared is the Directory on the server that the replicas share.
type Shared struct{ *valkey.Client }

// Find implements Directory.
func (s Shared) Find(ctx context.Context, owner, session string) (replica, address string, err error) {
	text, err := s.Text(ctx, findScript, []string{session}, owner, keyPrefix)
	replica, address, _ = strings.Cut(text, " ")
	return replica, address, err
}

// A Keeper keeps the sessions of this replica where the others find them when it is gone: the
// record of each, and the events of its streams, which are written behind. They are sealed
// with keys derived from the replicas' secret. It is safe for concurrent use.
type Keeper struct {
	router *Router
	server *valkey.Client
	life   time.Duration

	writing context.Context // ended by cut
	cut     context.CancelFunc
	ending  chan struct{} // closed by Close
	wake    chan struct{} // holds a token when something is queued
	work    sync.WaitGroup

	mu    sync.Mutex // protects the fields below
	queue []event
	bytes int // of the events to be written
}

// An event is one to be written, or without data one to be removed; without a stream it stands
// for the record of its session.
type event struct {
	session, stream string
	number          uint64
	data            [][]byte
}

func (e *event) size() (n int) {
	for _, part := range e.data {
		n += len(part)
	}
	return n
}

// NewKeeper returns a Keeper on server. A record and an event are kept for life after they were written.
func (r *Router) NewKeeper(server *valkey.Client, life time.Duration) *Keeper {
	k := &Keeper{router: r, server: server, life: life, ending: make(chan struct{}), wake: make(chan struct{}, 1)}
	k.writing, k.cut = context.WithCancel(context.Background())
	k.work.Go(k.write)
	return k
}

// Close waits until what is queued is written, for a second at most. What is queued later is lost.
func (k *Keeper) Close() {
	close(k.ending)
	late := time.AfterFunc(leaveWithin, k.cut)
	k.work.Wait()
	late.Stop()
	k.cut()
}

// Keep keeps the record of a session, and returns the replica that has the session: another one
// when it took the session over. With take, the session is another replica's, and this one's from now
// on if that is gone; the zero ID says that the session has ended.
func (k *Keeper) Keep(ctx context.Context, session string, record []byte, take bool) (owner [8]byte, err error) {
	sealed, err := k.router.names.seal(session, recordPlace, record)
	if err != nil {
		return owner, err
	}
	self := k.router.names.self
	text, err := k.server.Text(ctx, keepScript, []string{k.router.names.sessionKey(session)}, self, keyPrefix, sealed, k.life.Milliseconds(), map[bool]int{true: 1}[take])
	if err != nil {
		return owner, err
	}
	switch {
	case text != self:
		k.router.taken.Delete(session)
	case take:
		k.router.taken.Store(session, true)
	}
	return idOf(text), nil
}

// KeepEvent queues event number n of a stream; the caller must not change data afterwards. Without data
// it queues the removal of the event, and without a stream that of the session's record. Events beyond
// the bounds of the queue are dropped.
func (k *Keeper) KeepEvent(session, stream string, n uint64, data ...[]byte) {
	e := event{session, stream, n, data}
	if stream == "" {
		k.router.taken.Delete(session)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if stream != "" && (len(k.queue) >= mostQueued || k.bytes+e.size() > queuedBytes) {
		return
	}
	k.queue, k.bytes = append(k.queue, e), k.bytes+e.size()
	wait.Signal(k.wake)
}

// write writes what is queued until Close.
func (k *Keeper) write() {
	failing := false
	for open := true; open; {
		select {
		case <-k.wake:
		case <-k.ending:
			open = false
		}
		for events := k.next(); len(events) > 0; events = k.next() {
			for err := k.send(events); err != nil; err = k.send(events) {
				if !failing {
					k.router.opts.Log.Warn("events of sessions are not kept for other replicas", "error", err)
				}
				if failing = true; !wait.For(k.writing, retryEvery) {
					return
				}
			}
			failing = false
		}
	}
}

// next takes events out of the queue.
func (k *Keeper) next() []event {
	k.mu.Lock()
	defer k.mu.Unlock()
	events := k.queue[:min(len(k.queue), batch)]
	if k.queue = k.queue[len(events):]; len(k.queue) == 0 {
		k.queue = nil
	}
	for _, e := range events {
		k.bytes -= e.size()
	}
	return events
}

// send writes events; to do so twice is to do it once.
func (k *Keeper) send(events []event) error {
	changes, n := make([]valkey.Change, len(events)), k.router.names
	for i, e := range events {
		if e.stream == "" {
			changes[i].Key = n.sessionKey(e.session)
			continue
		}
		changes[i] = valkey.Change{Key: n.streamKey(e.session, e.stream), Field: strconv.FormatUint(e.number, 10), Life: k.life}
		if len(e.data) > 0 {
			text, err := n.seal(e.session, eventPlace(e.stream, changes[i].Field), bytes.Join(e.data, nil))
			if err != nil {
				return err
			}
			changes[i].Text = text
		}
	}
	return k.server.Change(k.writing, changes)
}

// Load returns the record of a session, or the events of one of its streams in order; nothing when
// they are not kept, or when the server has what no replica sealed for this place. It fails when the
// server is away.
func (k *Keeper) Load(ctx context.Context, session, stream string) ([][]byte, error) {
	n := k.router.names
	if _, ok := n.owner(session); !ok {
		return nil, nil
	}
	key := n.sessionKey(session)
	if stream != "" {
		key = n.streamKey(session, stream)
	}
	fields, err := k.server.Fields(ctx, key)
	if err != nil {
		return nil, err
	}
	if stream == "" {
		delete(fields, "owner")
	}
	var opened [][]byte
	for _, field := range slices.SortedFunc(maps.Keys(fields), byNumber) {
		place := recordPlace
		if stream != "" {
			place = eventPlace(stream, field)
		}
		plain, err := n.open(session, place, fields[field])
		if err != nil {
			k.router.opts.Log.Warn("a session is not taken over", "error", err)
			return nil, nil
		}
		opened = append(opened, plain)
	}
	return opened, nil
}

// byNumber compares decimal numbers.
func byNumber(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
