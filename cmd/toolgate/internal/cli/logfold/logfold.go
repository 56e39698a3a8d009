// Package logfold keeps floods out of a log: lines that repeat are folded into one line
// with their number.
//
// A Writer is the Output of an hclog logger. Two lines are of one kind when they are the
// same but for words that contain digits: times, IDs, sizes. Ten lines of a kind in a
// minute are written at once. Those that follow are counted, and the last of them is
// written at the end of each minute with their number, until a minute passes without one:
//
//	[ERROR] toolgate.gate: writing the decision record: decision=dec_1 error="no space left on device"
//	[ERROR] toolgate.gate: writing the decision record: decision=dec_9 error="no space left on device" repeated=86825
//
// Lines of level debug and trace are always written.
package logfold

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	window   = time.Minute
	atOnce   = 10      // lines of one kind in a window that are written
	maxKinds = 256     // beyond it all further lines are of one kind
	keyBytes = 1 << 10 // of a line that say of which kind it is
)

// Writer writes the lines of a log. It is safe for concurrent use. Close it to write
// what was counted.
type Writer struct {
	out io.Writer

	mu    sync.Mutex // protects the fields below, and writing
	kinds map[string]*kind
	timer *time.Timer // ends the window; nil = nothing was written in it
}

// kind is what a window has of one kind of lines.
type kind struct {
	count, folded int
	last          []byte // of the folded lines
}

var _ hclog.LevelWriter = (*Writer)(nil)

// New returns a Writer on out.
func New(out io.Writer) *Writer { return &Writer{out: out, kinds: make(map[string]*kind)} }

// Write implements io.Writer. It folds nothing.
func (w *Writer) Write(line []byte) (int, error) { return w.LevelWrite(hclog.Debug, line) }

// LevelWrite implements hclog.LevelWriter. Line is one line of the log, in text or JSON.
// A line that is folded counts as written.
func (w *Writer) LevelWrite(level hclog.Level, line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if level < hclog.Info {
		return w.out.Write(line)
	}
	if w.timer == nil {
		w.timer = time.AfterFunc(window, w.endWindow)
	}
	key := keyOf(line)
	k := w.kinds[key]
	if k == nil && len(w.kinds) >= maxKinds {
		key = "" // of no line
		k = w.kinds[key]
	}
	if k == nil {
		k = &kind{}
		w.kinds[key] = k
	}
	if k.count++; k.count <= atOnce {
		return w.out.Write(line)
	}
	k.folded++
	k.last = append(k.last[:0], line...)
	return len(line), nil
}

// varying matches a word that contains a digit.
var varying = regexp.MustCompile(`[\w.:+-]*\d[\w.:+-]*`)

// keyOf returns a line without its words that contain digits.
func keyOf(line []byte) string {
	return string(varying.ReplaceAllLiteral(line[:min(len(line), keyBytes)], []byte("#")))
}

// endWindow ends the window, and begins the next one if lines were folded. Their kinds stay folded in it.
func (w *Writer) endWindow() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeFolded()
	w.timer = nil
	if len(w.kinds) > 0 {
		w.timer = time.AfterFunc(window, w.endWindow)
	}
}

// writeFolded writes the last line of each kind that was folded, and how many there were. The caller
// must hold w.mu.
func (w *Writer) writeFolded() {
	for key, k := range w.kinds {
		if k.folded == 0 {
			delete(w.kinds, key)
			continue
		}
		line := bytes.TrimRight(k.last, "\n")
		if text, ok := bytes.CutSuffix(line, []byte("}")); ok && line[0] == '{' {
			line = fmt.Appendf(text, `,"repeated":%d}`, k.folded)
		} else {
			line = fmt.Appendf(line, " repeated=%d", k.folded)
		}
		_, _ = w.out.Write(append(line, '\n')) // nothing else could say that the log cannot be written
		k.count, k.folded = atOnce, 0
	}
}

// Close writes what was folded. Lines that follow are written or folded as before.
func (w *Writer) Close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	w.writeFolded()
	clear(w.kinds)
}
