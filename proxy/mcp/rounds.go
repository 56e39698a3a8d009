package mcp

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// askable are the requests of a server that the revision knows.
var askable = []string{"elicitation/create", "sampling/createMessage", "roots/list"}

// questionnaire is a round of questions that one answer of the client must answer whole.
type questionnaire struct {
	number   uint32
	asked    []registry.Question
	keys     []string // of asked, "" for a question that is not put
	answers  []registry.Answer
	answered chan struct{} // closed when answers is whole
}

// newQuestionnaire makes one of questions, those that cannot be put refused, and
// reports whether any is left to put.
func newQuestionnaire(questions []registry.Question) (r *questionnaire, open bool) {
	r = &questionnaire{
		asked: questions, keys: make([]string, len(questions)), answers: make([]registry.Answer, len(questions)),
		answered: make(chan struct{}),
	}
	for i, q := range questions {
		if !slices.Contains(askable, q.Method) {
			r.answers[i].Error = failed("revision " + modernVersion + " has no request " + q.Method + " to a client")
			continue
		}
		r.keys[i], open = r.keyFor(q.Key), true
	}
	return r, open
}

// keyFor is the key of one more question: its own, or one that is free.
func (r *questionnaire) keyFor(own string) string {
	if own != "" && !slices.Contains(r.keys, own) {
		return own
	}
	for n := 1; ; n++ {
		key := "question_" + strconv.Itoa(n)
		taken := func(q registry.Question) bool { return q.Key == key }
		if !slices.Contains(r.keys, key) && !slices.ContainsFunc(r.asked, taken) {
			return key
		}
	}
}

// anew reports whether nothing has been sent for the request that asks r.
func (r *questionnaire) anew() bool {
	return !slices.ContainsFunc(r.asked, func(q registry.Question) bool { return !q.Anew })
}

// match takes the answers of a client, and reports false when one is missing.
// What answers nothing is ignored.
func (r *questionnaire) match(responses json.RawMessage) bool {
	whole := slices.Clone(r.answers)
	for i, key := range r.keys {
		if key == "" {
			continue
		}
		result, ok := jsonrpc.Get(responses, key)
		if !ok || !isObject(result) {
			return false
		}
		whole[i].Result = result
	}
	r.answers = whole
	return true
}

// fail answers every question that was put with an error.
func (r *questionnaire) fail(reason string) []registry.Answer {
	for i, key := range r.keys {
		if key != "" {
			r.answers[i] = registry.Answer{Error: failed(reason)}
		}
	}
	return r.answers
}

// requests is the member inputRequests of the result that puts r.
func (r *questionnaire) requests() json.RawMessage {
	out := []byte{'{'}
	for i, key := range r.keys {
		if key == "" {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(out, jsonrpc.Quote(key)...), `:{"method":`...)
		out = append(out, jsonrpc.Quote(r.asked[i].Method)...)
		out = append(append(append(out, `,"params":`...), paramsOf(r.asked[i])...), '}')
	}
	return append(out, '}')
}

// paramsOf is what the client is asked, without what the revisions before had
// and this one has not: names of page visits, and tasks in place of answers.
// It is never absent: there are clients that cannot read a question without.
func paramsOf(q registry.Question) json.RawMessage {
	if q.Params == nil {
		return json.RawMessage("{}")
	}
	params := q.Params
	for _, member := range []string{"elicitationId", "task"} {
		if without, err := jsonrpc.Delete(params, member); err == nil {
			params = without
		}
	}
	return params
}

// Ask puts a round of questions to the client, in place of the answer to the
// request that waits, and waits for the client's answers. Rounds of one errand
// are put one after the other, in the order in which they come.
func (e *errand) Ask(ctx context.Context, questions []registry.Question) []registry.Answer {
	return e.settle(ctx, questions)
}

// settle is Ask.
func (e *errand) settle(ctx context.Context, questions []registry.Question) []registry.Answer {
	if !e.row.asks {
		return unanswered(questions, "method "+e.x.call.Message.Method+" cannot ask the client in revision "+modernVersion)
	}
	select {
	case e.asking <- struct{}{}:
		defer func() { <-e.asking }()
	case <-ctx.Done():
		return unanswered(questions, "the question was withdrawn")
	case <-e.ctx.Done():
		return unanswered(questions, "the client has gone")
	case <-e.door.streams:
		return unanswered(questions, errClosing.Error())
	}
	r, open := newQuestionnaire(questions)
	if !open || r.match(e.volunteered()) {
		return r.answers
	}
	if reason := e.put(r); reason != "" {
		return r.fail(reason)
	}
	return e.settled(ctx, r)
}

// volunteered gives what the first request brought as answers before anything
// was asked, once.
func (e *errand) volunteered() json.RawMessage {
	e.mu.Lock()
	defer e.mu.Unlock()
	early := e.early
	e.early = nil
	return early
}

// put makes r the round that is open, and says why it cannot.
func (e *errand) put(r *questionnaire) string {
	d := e.door
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.released:
		return "the client has gone"
	case e.asked == 0 && !d.park(e):
		t := e.turn
		e.turn, e.released = nil, true
		t.told <- d.refuse(t.x, signal.CodeOverloaded, "too many calls wait for the answers of their clients")
		e.cancel(errNoRoom)
		return errNoRoom.Error()
	}
	e.asked++
	r.number, e.round = e.asked, r
	if e.turn != nil {
		e.tellLocked(e.turn)
	}
	return ""
}

// tellLocked answers t with the round that is open; the errand is parked. The
// caller must hold e.mu.
func (e *errand) tellLocked(t *turn) {
	if e.told != e.round.number {
		e.until = e.door.opts.Now().Add(e.door.opts.AnswerTTL)
	}
	e.turn, e.told = nil, e.round.number
	state := e.door.notary.sign(claim{call: e.id, round: e.told, until: e.until, binding: e.binding, anew: e.round.anew()})
	result := slices.Concat([]byte(`{"resultType":"input_required","inputRequests":`), e.round.requests(),
		[]byte(`,"requestState":`), jsonrpc.Quote(state), []byte(`,"_meta":{`), jsonrpc.Quote(metaServer), []byte{':'},
		e.door.serverInfo(), []byte("}}"))
	t.told <- answer{status: http.StatusOK, body: success(t.x.id(), result)}
}

// settled waits for the answers to r, as long as the client may take.
func (e *errand) settled(ctx context.Context, r *questionnaire) []registry.Answer {
	timer := time.NewTimer(e.door.opts.AnswerTTL)
	defer timer.Stop()
	var reason string
	over := true
	select {
	case <-r.answered:
		return r.answers
	case <-timer.C:
		reason = errLate.Error()
	case <-ctx.Done():
		reason, over = "the question was withdrawn", false
	case <-e.ctx.Done():
		reason = "the client has gone"
	case <-e.door.streams:
		reason = errClosing.Error()
	}
	return e.withdraw(r, reason, over)
}

// withdraw takes r back, unless it was answered meanwhile. When the errand is
// over for its client no turn can follow.
func (e *errand) withdraw(r *questionnaire, reason string, over bool) []registry.Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.round != r {
		return r.answers
	}
	e.round = nil
	e.released = e.released || over && e.turn == nil
	return r.fail(reason)
}

// resume gives the errand that the requestState of t names its next turn, or
// says why it names none. Then nothing has changed for that errand. One that is
// gone, with its process perhaps, begins anew where nothing can have been sent
// for it: what the client answered is then an answer to nothing.
func (d *Door) resume(t *turn) (*errand, error) {
	text, _ := jsonrpc.Text(t.x.modern.state)
	c, err := d.notary.read(text)
	switch {
	case err != nil:
		return nil, err
	case c.binding != bindingOf(t.x):
		return nil, errForeign
	case !d.opts.Now().Before(c.until):
		return nil, errLapsed
	}
	e := d.parked.find(c.call)
	if err = errGone; e != nil {
		err = e.retry(t, c.round)
	}
	if errors.Is(err, errGone) && c.anew {
		t.x.modern.responses = nil
		return d.begin(t), nil
	}
	return e, err
}

// retry makes t the turn of e, whose client has heard of round number last. It
// is told at once what has come meanwhile, and the same round again when an
// answer is missing.
func (e *errand) retry(t *turn, number uint32) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.released:
		return errGone
	case number != e.told || e.turn != nil:
		return errAnswered
	case e.kept != nil:
		e.released = true
		e.answerLocked(t) // what was asked beside it
		t.told <- e.door.worded(t.x, *e.kept, e.row)
		close(e.fetched)
	case e.round == nil:
		e.turn = t
	case e.round.number != number || !e.answerLocked(t):
		e.tellLocked(t)
	default:
		e.turn = t
	}
	return nil
}

// answerLocked takes the answers of t to the round that is open, if they are
// whole. The caller must hold e.mu.
func (e *errand) answerLocked(t *turn) bool {
	if e.round == nil || !e.round.match(t.x.modern.responses) {
		return false
	}
	close(e.round.answered)
	e.round = nil
	return true
}

// parked are the errands that wait, or have waited, for their client's answers.
type parked struct {
	mu   sync.Mutex // protects the field below
	byID map[callID]*errand
}

func (p *parked) find(id callID) *errand {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

// park enters e, and reports false when there are too many of its principal, or
// in all.
func (d *Door) park(e *errand) bool {
	if !d.parties.park(e.x.modern.party, d.opts.MaxParkedEach, d.opts.MaxParked) {
		return false
	}
	d.parked.mu.Lock()
	defer d.parked.mu.Unlock()
	d.parked.byID[e.id] = e
	return true
}

// forget takes e out.
func (d *Door) forget(e *errand) {
	d.parked.mu.Lock()
	delete(d.parked.byID, e.id)
	d.parked.mu.Unlock()
	d.parties.unpark(e.x.modern.party)
}

func newCallID() (id callID) {
	_, _ = rand.Read(id[:]) // never fails
	return id
}
