package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
)

// An upstream is a small MCP server of both protocol eras, over HTTP or stdio. Its
// tools echo and checked return their text, big returns bytes of text. Further tools
// fill its list.
type upstream struct {
	list   []byte // the result of tools/list, in one page
	filler []byte // what big returns
}

// largest is the longest text that big returns, in bytes.
const largest = 5 << 20

// own is the number of an upstream's tools that are called.
const own = 3

func newUpstream(tools int) *upstream {
	var b bytes.Buffer
	b.WriteString(`{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[`)
	for i, name := range []string{"echo", "checked"} {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"name":%q,"description":"Returns its text.","inputSchema":{"type":"object",`+
			`"properties":{"text":{"type":"string","minLength":1}},"required":["text"],"additionalProperties":false}}`, name)
	}
	b.WriteString(`,{"name":"big","description":"Returns bytes of text.","inputSchema":{"type":"object",` +
		`"properties":{"bytes":{"type":"integer","minimum":1}},"required":["bytes"],"additionalProperties":false}}`)
	for i := own; i < tools; i++ {
		fmt.Fprintf(&b, `,{"name":"record_%05d","description":"Looks up the records of kind %d that an account has in a region between two days, newest first.",`+
			`"inputSchema":{"type":"object","properties":{"account":{"type":"string","description":"number of the account","minLength":1},`+
			`"region":{"type":"string","enum":["africa","america","asia","europe"]},"from":{"type":"string","format":"date"},"to":{"type":"string","format":"date"},`+
			`"limit":{"type":"integer","minimum":1,"maximum":200}},"required":["account","region"]}}`, i, i)
	}
	b.WriteString("]}")
	return &upstream{list: b.Bytes(), filler: bytes.Repeat([]byte("the five boxing wizards jump ..\\n"), largest/32)[:largest]}
}

// An upstreamRequest is the part of a JSON-RPC message that an upstream reads.
type upstreamRequest struct {
	ID     json.RawMessage
	Method string
	Params struct {
		Name      string
		Arguments struct {
			Text  json.RawMessage
			Bytes int
		}
	}
}

// answer appends the answer to a message; a notification has none.
func (u *upstream) answer(b, text []byte) []byte {
	var r upstreamRequest
	if err := json.Unmarshal(text, &r); err != nil || r.ID == nil {
		return b
	}
	b = append(append(append(b, `{"jsonrpc":"2.0","id":`...), r.ID...), ',')
	switch r.Method {
	case "tools/call":
		b = u.callResult(append(b, `"result":`...), &r)
	case "tools/list":
		b = append(append(b, `"result":`...), u.list...)
	case "initialize":
		b = append(b, `"result":{"protocolVersion":"`+withSessions+`","capabilities":{"tools":{}},"serverInfo":{"name":"bench","version":"1"}}`...)
	case "server/discover":
		b = append(b, `"result":{"resultType":"complete","ttlMs":60000,"cacheScope":"public","supportedVersions":["`+stateless+`","`+withSessions+`"],`+
			`"capabilities":{"tools":{}},"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"bench","version":"1"}}}`...)
	case "ping":
		b = append(b, `"result":{}`...)
	default:
		b = append(b, `"error":{"code":-32601,"message":"method not found"}`...)
	}
	return append(b, '}')
}

func (u *upstream) callResult(b []byte, r *upstreamRequest) []byte {
	b = append(b, `{"content":[{"type":"text","text":`...)
	if r.Params.Name == "big" {
		b = append(append(append(b, '"'), u.filler[:min(r.Params.Arguments.Bytes&^31, largest)]...), '"')
	} else {
		b = append(b, r.Params.Arguments.Text...)
	}
	return append(b, `}],"isError":false,"resultType":"complete"}`...)
}

// serveUpstream runs an upstream on a free port, which it prints, or on r and w.
func serveUpstream(args []string, r io.Reader, w io.Writer) error {
	flags := flag.NewFlagSet("upstream", flag.ContinueOnError)
	overHTTP := flags.Bool("http", false, "serve a free port instead of stdin and stdout")
	tools := flags.Int("tools", own, "number of tools")
	if err := flags.Parse(args); err != nil {
		return err
	}
	u := newUpstream(*tools)
	if !*overHTTP {
		return u.serveLines(r, w)
	}
	l, err := announce(w, "127.0.0.1:0")
	if err != nil {
		return err
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go u.serveConn(conn)
	}
}

func (u *upstream) serveLines(r io.Reader, w io.Writer) error {
	lines := bufio.NewReaderSize(r, 64<<10)
	var out []byte
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // the client has ended
		}
		if err != nil {
			return err
		}
		if out = u.answer(out[:0], line); len(out) > 0 {
			if _, err := w.Write(append(out, '\n')); err != nil {
				return err
			}
		}
	}
}

// serveConn answers the requests of one connection until it ends.
func (u *upstream) serveConn(conn net.Conn) {
	defer func() { _ = conn.Close() }() // the client closes it first
	r := bufio.NewReaderSize(conn, 16<<10)
	var m message
	var body, out []byte
	for m.read(r) == nil {
		switch out = out[:0]; {
		case bytes.HasPrefix(m.start, []byte("DELETE")):
			out = append(out, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"...)
		case !bytes.HasPrefix(m.start, []byte("POST")):
			out = append(out, "HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Length: 0\r\n\r\n"...)
		default:
			if body = u.answer(body[:0], m.body); len(body) == 0 {
				out = append(out, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"...)
				break
			}
			out = strconv.AppendInt(append(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "...), int64(len(body)), 10)
			out = append(append(out, "\r\n\r\n"...), body...)
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// command runs one of the peers that a benchmark starts from its own binary.
func command(args []string) (ran bool) {
	commands := map[string]func([]string, io.Reader, io.Writer) error{"upstream": serveUpstream, "proxy": serveProxy}
	if len(args) == 0 || commands[args[0]] == nil {
		return false
	}
	if err := commands[args[0]](args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}
