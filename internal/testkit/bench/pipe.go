package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"
)

// A pipe is a peer that speaks MCP on its stdin and stdout, as desktop clients start
// one. Its callers share it, and answers find their caller by id.
type pipe struct {
	endpoint
	proc *process
	in   io.WriteCloser
	done chan struct{} // closed when the peer's output has ended

	mu      sync.Mutex // protects the fields below, and writing to in
	id      int
	waiting map[int]chan []byte
}

// openPipe starts a program and initializes it.
func openPipe(proc *process, e endpoint) (*pipe, error) {
	in, err := proc.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := proc.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := proc.cmd.Start(); err != nil {
		return nil, err
	}
	p := &pipe{endpoint: e, proc: proc, in: in, done: make(chan struct{}), waiting: map[int]chan []byte{}}
	go p.receive(out)
	c := p.caller()
	if _, err = c.call("initialize", "", `"protocolVersion":"`+withSessions+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}`); err == nil {
		_, err = io.WriteString(in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	if err != nil {
		p.end()
		return nil, errors.Join(err, proc.ended())
	}
	return p, nil
}

// end closes the program's stdin and waits until it has ended.
func (p *pipe) end() {
	p.in.Close()
	<-p.done
	p.proc.reap()
	p.proc.end()
}

// receive hands every answer to the caller that waits for it.
func (p *pipe) receive(out io.Reader) {
	defer close(p.done)
	lines := bufio.NewReaderSize(out, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		p.mu.Lock()
		id := idOf(line)
		if answer := p.waiting[id]; answer != nil {
			delete(p.waiting, id)
			answer <- line
		}
		p.mu.Unlock()
	}
}

// idOf returns the id of an answer, 0 for what is none. An answer whose id comes
// first, as usual, is not decoded.
func idOf(line []byte) int {
	if rest, ok := bytes.CutPrefix(line, []byte(`{"jsonrpc":"2.0","id":`)); ok {
		if digits, _, ok := bytes.Cut(rest, []byte(",")); ok {
			if id, err := strconv.Atoi(string(digits)); err == nil {
				return id
			}
		}
	}
	var m struct{ ID int }
	if json.Unmarshal(line, &m) != nil {
		return 0
	}
	return m.ID
}

func (p *pipe) caller() caller { return &pipeCaller{pipe: p, answer: make(chan []byte, 1)} }

// A pipeCaller is one caller of a pipe.
type pipeCaller struct {
	*pipe
	answer chan []byte
	body   []byte
}

func (c *pipeCaller) call(method, tool, params string) ([]byte, error) {
	if err := c.send(method, tool, params); err != nil {
		return nil, err
	}
	select {
	case line := <-c.answer:
		return line, nil
	case <-c.done:
		return nil, errors.New("the peer has ended")
	case <-time.After(answerTime):
		return nil, errors.New("no answer")
	}
}

func (c *pipeCaller) send(method, tool, params string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.id++
	c.waiting[c.id] = c.answer
	c.body = append(request(c.body[:0], c.endpoint, c.id, method, tool, params), '\n')
	_, err := c.in.Write(c.body)
	return err
}

func (c *pipeCaller) close() {}
