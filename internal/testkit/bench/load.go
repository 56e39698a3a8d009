package main

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"
)

// figures are what one workload measured at one lane in one round.
type figures struct {
	Calls, Errors int
	P50, P99      float64 // time of a call in microseconds
	Rate          float64 // calls per second
	CPU           float64 // microseconds of CPU that a call cost the peer, user and system
	Allocations   float64 // objects that the peer allocated for a call; 0 = it does not say
	Resident      float64 // memory of the peer afterwards, in bytes
	Value         float64 // what a workload measures that times no calls, in its row's unit
	Fault         string  // the first error
}

// failed returns the figures of a measurement that could not be made.
func failed(err error) figures { return figures{Errors: 1, Fault: err.Error()} }

// A requestFunc sends one request and checks the answer. seq counts the requests of a
// worker.
type requestFunc func(c caller, worker, seq int) error

var errorMember, isError = []byte(`"error":{`), []byte(`"isError":true`)

// echo calls a tool that returns its text, which no other call sends.
func echo(tool string) requestFunc {
	return func(c caller, worker, seq int) error {
		text := fmt.Sprintf("call %d of worker %d: sphinx of black quartz, judge my vow", seq, worker)
		answer, err := c.call("tools/call", tool, `"arguments":{"text":"`+text+`"}`)
		if err == nil && (!bytes.Contains(answer, []byte(text)) || bytes.Contains(answer, isError)) {
			err = fmt.Errorf("%s: %.300s", tool, answer)
		}
		return err
	}
}

// held calls the tool with a text that the policy holds, always the same, so that all
// calls meet one ticket.
func held(c caller, _, _ int) error {
	answer, err := c.call("tools/call", "checked", `"arguments":{"text":"held for a person"}`)
	if err == nil && !bytes.Contains(answer, isError) {
		err = fmt.Errorf("not held: %.300s", answer)
	}
	return err
}

// big calls for a text of so many bytes.
func big(size int) requestFunc {
	params := fmt.Sprintf(`"arguments":{"bytes":%d}`, size)
	return func(c caller, _, _ int) error {
		answer, err := c.call("tools/call", "big", params)
		if err == nil && len(answer) < size {
			err = fmt.Errorf("%d bytes: %.300s", len(answer), answer)
		}
		return err
	}
}

// list lists the tools of a server, page by page. The first list of a caller is
// counted; later ones have to be as long.
func list(tools int) requestFunc {
	var mu sync.Mutex
	known := map[caller]int{}
	return func(c caller, _, _ int) error {
		mu.Lock()
		want, counted := known[c]
		mu.Unlock()
		size, count, err := listOnce(c, !counted)
		switch {
		case err != nil:
			return err
		case counted && size < want-64: // ids grow by digits
			return fmt.Errorf("a list of %d bytes after one of %d", size, want)
		case !counted && count < tools:
			return fmt.Errorf("%d tools, want %d", count, tools)
		}
		mu.Lock()
		known[c] = max(size, want)
		mu.Unlock()
		return nil
	}
}

func listOnce(c caller, counting bool) (size, tools int, err error) {
	params := ""
	for {
		answer, err := c.call("tools/list", "", params)
		if err != nil {
			return 0, 0, err
		}
		if bytes.Contains(answer[:min(len(answer), 200)], errorMember) {
			return 0, 0, fmt.Errorf("tools/list: %.300s", answer)
		}
		size += len(answer)
		if counting {
			tools += bytes.Count(answer, []byte(`"inputSchema"`))
		}
		cursor := nextCursor(answer)
		if cursor == "" {
			return size, tools, nil
		}
		params = `"cursor":"` + cursor + `"`
	}
}

// nextCursor finds the cursor of the next page, which servers write before the tools
// or after them.
func nextCursor(answer []byte) string {
	for _, part := range [][]byte{answer[:min(len(answer), 300)], answer[max(0, len(answer)-600):]} {
		if _, rest, ok := bytes.Cut(part, []byte(`"nextCursor":"`)); ok {
			cursor, _, _ := bytes.Cut(rest, []byte(`"`))
			return string(cursor)
		}
	}
	return ""
}

// times collects the calls of one worker.
type times struct {
	calls []time.Duration
	errs  int
	first error
}

func (t *times) add(took time.Duration, err error) {
	if err == nil {
		t.calls = append(t.calls, took)
		return
	}
	t.errs++
	if t.first == nil {
		t.first = err
	}
}

// tooMany ends a worker that mostly fails.
func (t *times) tooMany() bool { return t.errs > 10+len(t.calls) }

// closedLoop lets every caller send its next request when the last one is answered.
func closedLoop(callers []caller, d time.Duration, send requestFunc) figures {
	workers := make([]times, len(callers))
	var wait sync.WaitGroup
	start := time.Now()
	for i, c := range callers {
		wait.Go(func() {
			for seq := 0; time.Since(start) < d && !workers[i].tooMany(); seq++ {
				begun := time.Now()
				err := send(c, i, seq)
				workers[i].add(time.Since(begun), err)
			}
		})
	}
	wait.Wait()
	return sum(workers, time.Since(start))
}

// openLoop sends requests at a constant rate, whether earlier ones are answered or
// not. A request's time begins when it is due, so that one slow answer is charged to
// all requests that wait for it.
func openLoop(callers []caller, d time.Duration, rate int, send requestFunc) figures {
	n := int(d.Seconds() * float64(rate))
	due := make(chan time.Time, n)
	workers := make([]times, len(callers))
	var wait sync.WaitGroup
	start := time.Now()
	for i, c := range callers {
		wait.Go(func() {
			seq := 0
			for at := range due {
				if workers[i].tooMany() {
					continue
				}
				err := send(c, i, seq)
				workers[i].add(time.Since(at), err)
				seq++
			}
		})
	}
	wait.Go(func() {
		defer close(due)
		fineSleep()
		for i := range n {
			at := start.Add(time.Duration(i) * time.Second / time.Duration(rate))
			pause(time.Until(at))
			due <- at
		}
	})
	wait.Wait()
	return sum(workers, time.Since(start))
}

// sum adds up what the workers collected in a time.
func sum(workers []times, took time.Duration) figures {
	var f figures
	var all []float64
	var first error
	for _, w := range workers {
		for _, d := range w.calls {
			all = append(all, float64(d.Nanoseconds())/1e3)
		}
		f.Errors += w.errs
		if first == nil {
			first = w.first
		}
	}
	f.Calls = len(all)
	f.P50, f.P99 = quantile(all, 0.50), quantile(all, 0.99)
	f.Rate = float64(f.Calls) / took.Seconds()
	if f.Calls == 0 && first == nil {
		first = errors.New("no call was answered")
		f.Errors = 1
	}
	if first != nil {
		f.Fault = first.Error()
	}
	return f
}
