package fetch

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/toolgate/toolgate/internal/wait"
)

// firstRetry is how soon a server is asked again that failed once.
const firstRetry = time.Second

// Poll asks the server again and again until ctx ends, and then gives nil.
// serving is the copy that the caller has; nil = none. take is given every new
// one: when it returns nil the copy becomes the last good one, else it is
// dropped and not offered again until the server has another. said is told how
// each round went, nil for well; while the server has a copy that was not taken,
// that is how it goes.
//
// The time between rounds is random between Min and Max. A server that can wait
// for changes is asked again at once, or after a second if it answered at once. After failures the time begins at a second
// and doubles up to Max.
func (s *Source) Poll(ctx context.Context, serving *Copy, take func(context.Context, *Copy) error, said func(error)) error {
	p := poller{source: s, take: take, long: s.o.Long}
	if serving != nil {
		p.last = serving.note
	}
	failures, pause := 0, s.pause()
	switch {
	case serving == nil || !serving.fresh:
		pause = backoff(0, s.o.Max)
	case p.long > 0:
		pause = 0
	}
	for wait.For(ctx, pause) {
		began := time.Now()
		changed, err := p.round(ctx)
		if ctx.Err() == nil {
			said(err)
		}
		if err == nil || Refused(err) {
			pause, failures = p.rest(changed, time.Since(began)), 0
			continue
		}
		pause = backoff(failures, s.o.Max)
		failures++
	}
	return nil
}

// rest is how long to wait after a round that took so long. A server that says
// at once that nothing has changed does not wait for changes; and one that has
// another bundle each time shall not keep us busy.
func (p *poller) rest(changed bool, took time.Duration) time.Duration {
	switch {
	case p.long == 0 || !changed && took < p.long/2:
		return p.source.pause()
	case took < firstRetry:
		return firstRetry
	}
	return 0
}

// poller is the state of one Poll.
type poller struct {
	source *Source
	take   func(context.Context, *Copy) error
	last   note          // of the copy that was offered last
	why    error         // why that was not taken, a refusal; nil = it was
	long   time.Duration // how long the server may wait; 0 = it cannot, or need not
}

// refusal is why a copy was not taken. It is not fetched again for that.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// Refused reports whether an error that Poll said is that of take: the server
// has a copy, and it was not taken.
func Refused(err error) bool { return errors.As(err, new(refusal)) }

// round asks once, and reports whether there was something new.
func (p *poller) round(ctx context.Context) (changed bool, err error) {
	got, err := p.source.ask(ctx, p.last.ETag, p.long)
	if err != nil {
		return false, err
	}
	c := got.copy
	if c == nil {
		return false, p.why
	}
	p.long = 0
	if got.long {
		p.long = p.source.o.Long
	}
	same := c.note.SHA256 == p.last.SHA256
	p.last = c.note
	if same {
		return false, errors.Join(p.why, c.Drop())
	}
	if err := p.take(ctx, c); err != nil {
		p.why = refusal{err}
		return true, errors.Join(p.why, c.Drop())
	}
	p.why = nil
	return true, c.Keep()
}

// pause is a random time between Min and Max, so that many toolgates do not ask
// together.
func (s *Source) pause() time.Duration {
	return s.o.Min + time.Duration(rand.Int64N(int64(s.o.Max-s.o.Min)+1))
}

// backoff is how long to wait after so many failures before this one.
func backoff(failures int, most time.Duration) time.Duration {
	d := min(firstRetry<<min(failures, 20), most)
	return d/2 + time.Duration(rand.Int64N(int64(d/2)+1))
}
