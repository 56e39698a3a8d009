package share

import (
	"context"
	"io"
	"sync"
)

// SmallAnswer is how many bytes of an answer are not counted by a Budget.
const SmallAnswer = 64 << 10

// An Owner is a principal whose messages are held.
type Owner struct{ Subject, Tenant string }

// A Budget bounds the bytes of messages that a process holds at once. A request that has
// no room is refused before it is read. An answer is never refused: reading it waits until
// other answers have been delivered. Requests and answers have the bytes of the budget each,
// so that no answer waits for a request that waits for an answer.
//
// One request of any size fits when no other is held, and one answer at a time may exceed the
// budget, so that answers of which each has been read in part do not wait for each other.
//
// A nil Budget has room for everything. A Budget is safe for concurrent use.
type Budget struct {
	most, each int64
	buffers    [bufferSizes]sync.Pool // of *buffer, by size

	mu       sync.Mutex // protects the fields below and those of each Claim
	requests int64
	answers  int64
	refused  uint64
	owners   map[Owner]int64
	beyond   *Claim        // the answer that may exceed the budget; nil = none does
	freed    chan struct{} // closed when bytes of answers are given back; nil = nobody waits
}

// NewBudget returns a budget of most bytes, of which requests of one owner have at most each.
func NewBudget(most, each int64) *Budget {
	return &Budget{most: most, each: each, owners: make(map[Owner]int64)}
}

// A Claim is what one request and its answer hold of a Budget. Its methods may be called
// on nil, which holds nothing.
type Claim struct {
	budget  *Budget
	owner   Owner
	holders int
	request int64
	answer  int64
	read    int64   // bytes of the answer that is being read; only its reader uses it
	buffer  *buffer // the last that Buffer returned a part of; nil = none
}

// Take claims n bytes for a request of owner. It returns false, and claims nothing, when
// the budget or the owner's part is used up. After true the caller calls Release.
func (b *Budget) Take(c *Claim, owner Owner, n int64) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.owners[owner]
	if b.requests > 0 && (b.requests+n > b.most || held > 0 && held+n > b.each) {
		b.refused++
		return false
	}
	*c = Claim{budget: b, owner: owner, holders: 1, request: n}
	b.addRequest(c, n)
	return true
}

// addRequest changes what owners hold by n bytes. The caller must hold b.mu.
func (b *Budget) addRequest(c *Claim, n int64) {
	b.requests += n
	if b.owners[c.owner] += n; b.owners[c.owner] == 0 {
		delete(b.owners, c.owner)
	}
}

// Held returns the bytes of requests and of answers that are held.
func (b *Budget) Held() (requests, answers int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests, b.answers
}

// Refused returns how often Take has refused a request.
func (b *Budget) Refused() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

// Shrink gives back what the request claimed beyond n bytes.
func (c *Claim) Shrink(n int64) {
	if c == nil || c.budget == nil || c.request == n {
		return
	}
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addRequest(c, n-c.request)
	c.request = n
}

// Hold keeps the claim until one more call of Release, for work that outlives whoever took it.
// It returns false for a claim that was given back.
func (c *Claim) Hold() bool {
	if c == nil || c.budget == nil {
		return false
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if c.holders == 0 {
		return false
	}
	c.holders++
	return true
}

// Release gives back everything when it has been called as often as Take and Hold.
func (c *Claim) Release() {
	if c == nil || c.budget == nil {
		return
	}
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.holders = max(c.holders-1, 0); c.holders > 0 {
		return
	}
	b.addRequest(c, -c.request)
	c.request = 0
	if u := c.buffer; u != nil && u.relinquished && u.delivered {
		_, i := bufferSize(len(u.room))
		*u = buffer{room: u.room}
		b.buffers[i].Put(u)
	}
	c.buffer = nil
	if c.answer > 0 {
		c.giveAnswer()
	}
}

// giveAnswer gives back the bytes of the answer. The caller must hold the lock of the budget.
func (c *Claim) giveAnswer() {
	b := c.budget
	b.answers -= c.answer
	if b.beyond == c {
		b.beyond = nil
	}
	if c.answer > 0 && b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
	c.answer = 0
}

// Grow counts n further bytes of the answer, and waits for room. It returns the cause of
// ctx when that ends first. The first SmallAnswer bytes of an answer are not counted. One
// goroutine at a time may call Grow and Drop.
func (c *Claim) Grow(ctx context.Context, n int) error {
	if c == nil || c.budget == nil {
		return nil
	}
	if c.read += int64(n); c.read <= SmallAnswer {
		return nil
	}
	for {
		freed := c.tryGrow(int64(n))
		if freed == nil {
			return nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// tryGrow counts n bytes, or returns a channel that is closed when there may be room.
func (c *Claim) tryGrow(n int64) (freed <-chan struct{}) {
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if c.holders == 0 {
		return nil // its request was given up, and nobody would release it
	}
	if b.answers > 0 && b.answers+n > b.most && b.beyond != c {
		if b.beyond != nil {
			if b.freed == nil {
				b.freed = make(chan struct{})
			}
			return b.freed
		}
		b.beyond = c
	}
	b.answers += n
	c.answer += n
	return nil
}

// Drop gives back the bytes of the answer that were counted: what was read is not kept.
func (c *Claim) Drop() {
	if c == nil || c.budget == nil {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.giveAnswer()
	c.read = 0
}

// Reader returns a reader of in whose Read counts what it has read, and waits as Grow does.
func (c *Claim) Reader(ctx context.Context, in io.Reader) io.Reader {
	if c == nil || c.budget == nil {
		return in
	}
	return &reader{c, ctx, in}
}

// A reader reads an answer within a budget.
type reader struct {
	claim *Claim
	ctx   context.Context // of the call
	in    io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	if full := r.claim.Grow(r.ctx, n); full != nil {
		return 0, full
	}
	return n, err
}
