package page

import (
	"context"
	"errors"
	"iter"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Heartbeat is how often a stream sends a comment to show that it lives.
const (
	// Heartbeat is how often a stream sends a comment to show that it lives.
	Heartbeat = 20 * time.Second
	// stalled is how long a reader may take no line before it is dropped.
	stalled = 30 * time.Second
)

// SendEvents sends server-sent events until ctx or the feed ends or the reader goes: first those of start, then
// what text returns for each thing that comes, "" for nothing, and a comment at every heartbeat. Before each
// it asks whether the reader may have it; an error ends the stream.
func SendEvents[T any](ctx context.Context, w http.ResponseWriter, start string, coming <-chan T, may func() error, text func(T) string) {
	out := http.NewResponseController(w)
	w.Header().Set("Content-Type", "text/event-stream")
	beat := time.NewTicker(Heartbeat)
	defer beat.Stop()
	for events := start; ; {
		if events != "" && WriteLine(w, out, []byte(events)) != nil {
			return
		}
		said := func() string { return ": still here\n" }
		select {
		case <-ctx.Done():
			return
		case one, ok := <-coming:
			if !ok {
				return
			}
			said = func() string { return text(one) }
		case <-beat.C:
		}
		if may() != nil {
			return
		}
		events = said()
	}
}

// Feed reads a sequence in a goroutine of its own, and closes the channel at its end. An error ends the
// sequence: a page that was too slow gets one, and asks again. The caller must end ctx and then call
// wait, which returns when the goroutine has ended.
func Feed[T any](ctx context.Context, log hclog.Logger, from iter.Seq2[T, error]) (to <-chan T, wait func()) {
	ch := make(chan T)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(ch)
		for v, err := range from {
			if err != nil {
				log.Info("a feed has ended", "error", err)
				return
			}
			select {
			case ch <- v:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ch, func() { <-done }
}

// JSONLines is the media type of JSON values, one on each line.
const JSONLines = "application/jsonl"

// WriteLine writes and flushes one line. It fails for a reader that takes
// nothing for the time stalled.
func WriteLine(w http.ResponseWriter, out *http.ResponseController, line []byte) error {
	if err := out.SetWriteDeadline(time.Now().Add(stalled)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return err
	}
	return out.Flush()
}

// Stream writes lines of a media type as they come. With follow, the reader learns at once that it
// is connected.
func Stream(log hclog.Logger, w http.ResponseWriter, kind string, lines iter.Seq2[[]byte, error], follow bool) {
	out := http.NewResponseController(w)
	defer out.SetWriteDeadline(time.Time{}) //nolint:errcheck // not every writer has deadlines
	w.Header().Set("Content-Type", kind)
	if follow {
		_ = out.Flush()
	}
	for line, err := range lines {
		if err != nil {
			log.Warn("ending a stream", "error", err)
			panic(http.ErrAbortHandler) // a cut stream must not look complete
		}
		if WriteLine(w, out, line) != nil {
			return
		}
	}
}
