// Package progress shows on a terminal how far a long command is, in one line that
// changes:
//
//	[#########           ] 45 % 12 s left: 1,024 of 2,275 pairs
//
// Work reports how much is done, as often as it likes, and the line is drawn five times a
// second. Where it is no terminal, nothing is drawn, or a line every five seconds if
// somebody asked for lines. Work that copies or reads files reports bytes: a Line is a
// Writer that counts what is written to it, for io.TeeReader and [FS].
package progress

import (
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Form is how progress is shown.
type Form int

// The forms.
const (
	None  Form = iota
	Lines      // a line every five seconds
	Bar        // one line that changes, on a terminal
)

// A Line shows the progress of one piece of work. It is not safe for concurrent use.
type Line struct {
	to           io.Writer
	form         Form
	begun, drawn time.Time

	what  string // of bytes
	bytes int64  // written so far
	total int64
}

// New returns a Line on to.
func New(to io.Writer, form Form) *Line {
	now := time.Now()
	return &Line{to: to, form: form, begun: now, drawn: now}
}

// Count returns a Line for what, which is total bytes of work. Each Write counts its bytes
// as done.
func (l *Line) Count(what string, total int64) *Line {
	return &Line{to: l.to, form: l.form, begun: time.Now(), drawn: l.drawn, what: what, total: total}
}

// Write implements io.Writer. It never fails.
func (l *Line) Write(p []byte) (int, error) {
	l.bytes += int64(len(p))
	l.Update(l.bytes, l.total, func() string { return fmt.Sprintf("%s, %d of %d MiB", l.what, l.bytes>>20, l.total>>20) })
	return len(p), nil
}

// Update shows that done of total is done, in any unit, and the text of say, if it is time
// to show something. A total of 0 is not known.
func (l *Line) Update(done, total int64, say func() string) {
	every := 5 * time.Second
	if l.form == Bar {
		every = 200 * time.Millisecond
	}
	if l.form == None || time.Since(l.drawn) < every {
		return
	}
	l.drawn = time.Now()
	text := share(done, total, time.Since(l.begun), l.form) + say()
	if l.form == Bar {
		fmt.Fprint(l.to, "\r\x1b[K"+text)
	} else {
		fmt.Fprintln(l.to, text)
	}
}

const barWidth = 20

// share says which part is done and how long the rest takes, at the pace so far.
func share(done, total int64, spent time.Duration, form Form) string {
	if total <= 0 || done <= 0 {
		return ""
	}
	done = min(done, total)
	left := time.Duration(float64(spent) * float64(total-done) / float64(done))
	text := fmt.Sprintf("%d %% %v left: ", 100*done/total, left.Round(time.Second))
	if form == Bar {
		full := int(barWidth * done / total)
		text = "[" + strings.Repeat("#", full) + strings.Repeat(" ", barWidth-full) + "] " + text
	}
	return text
}

// End removes the line.
func (l *Line) End() {
	if l.form == Bar {
		fmt.Fprint(l.to, "\r\x1b[K")
	}
}

// Size returns the bytes of files and of the files below directories. What cannot be read
// has none.
func Size(paths ...string) (bytes int64) {
	for _, path := range paths {
		_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error { // what it skips does not count
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // it has no size
			}
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
			return nil
		})
	}
	return bytes
}

// FS returns the files of fsys. What is read of them is written to w too.
func FS(fsys fs.FS, w io.Writer) fs.FS { return counted{fsys, w} }

type counted struct {
	fs.FS
	w io.Writer
}

// Open implements fs.FS.
func (c counted) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return f, err
	}
	return file{f, io.TeeReader(f, c.w)}, nil
}

type file struct {
	fs.File
	r io.Reader
}

// Read implements fs.File.
func (f file) Read(p []byte) (int, error) { return f.r.Read(p) }
