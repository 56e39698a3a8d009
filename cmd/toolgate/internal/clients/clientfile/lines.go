package clientfile

import (
	"bytes"
	"slices"
	"strings"
)

// text is a file as lines.
type text struct {
	lines   []string // each with its end
	newline string
	open    bool // the last line of the file has no end
}

func linesOf(data []byte) *text {
	t := &text{newline: lineEnd(data), open: len(data) > 0 && !bytes.HasSuffix(data, []byte("\n"))}
	all := string(data)
	if t.open {
		all += t.newline
	}
	t.lines = slices.Collect(strings.Lines(all))
	return t
}

func (t *text) bytes() []byte {
	all := strings.Join(t.lines, "")
	if t.open {
		all = strings.TrimSuffix(strings.TrimSuffix(all, "\n"), "\r")
	}
	return []byte(all)
}

// replace puts other lines, which end in \n, in the place of those from one to another.
func (t *text) replace(from, to int, with string) {
	t.lines = slices.Replace(t.lines, from, to, slices.Collect(strings.Lines(strings.ReplaceAll(with, "\n", t.newline)))...)
}

// trim returns the end of lines without the blank ones and the comments at their end.
func (t *text) trim(from, to int) int {
	for ; to > from; to-- {
		if line := strings.TrimSpace(t.lines[to-1]); line != "" && line[0] != '#' {
			break
		}
	}
	return to
}

// lineEnd returns how the lines of data end.
func lineEnd(data []byte) string {
	if bytes.Contains(data, []byte("\r\n")) {
		return "\r\n"
	}
	return "\n"
}
