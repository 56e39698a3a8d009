package mcp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"
)

// lines reads messages, one per line, on a goroutine of its own.
type lines struct {
	next chan []byte   // closed at the end of input
	err  error         // why input ended, nil = at its end; read after next is closed
	quit chan struct{} // closed by stop
	done chan struct{} // closed when the reader has ended
}

// newLines starts to read in. A line of more than limit bytes arrives as its
// first limit+1, which no decoder with that limit takes; the rest is skipped.
func newLines(in io.Reader, limit int) *lines {
	l := &lines{next: make(chan []byte), quit: make(chan struct{}), done: make(chan struct{})}
	go func() { // awaited by stop
		defer close(l.done)
		defer close(l.next)
		l.err = l.read(bufio.NewReaderSize(in, 64<<10), limit)
	}()
	return l
}

// read passes on lines until the end of input, where it returns nil, or stop.
func (l *lines) read(in *bufio.Reader, limit int) error {
	for {
		line, err := readLine(in, limit)
		if len(line) > 0 {
			select {
			case l.next <- line:
			case <-l.quit:
				return nil
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading from the client: %w", err)
		}
	}
}

// readLine gives the next line without its end. The last line of the input
// comes with io.EOF.
func readLine(in *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		end := err == nil
		if end {
			part = part[:len(part)-1]
		}
		line = append(line, part[:min(len(part), limit+1-len(line))]...)
		if end || !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// stop ends the reader. A Read that is under way ends when in is closed; one
// that does not (a terminal's) is left to the end of the process.
func (l *lines) stop(in io.Reader) {
	close(l.quit)
	select {
	case <-l.done:
		return
	default:
	}
	if c, ok := in.(io.Closer); ok {
		_ = c.Close() // it is being abandoned
		within(l.done, time.Second)
	}
}
