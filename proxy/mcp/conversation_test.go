package mcp_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/conversation"
	"github.com/toolgate/toolgate/proxy/mcp"
)

var update = flag.Bool("update", false, "write what the door answers into testdata")

// TestConversations holds the door to the wire, byte for byte. Each file of
// testdata is one conversation with a door whose page size is 4:
//
//	-- alice: POST /mcp --       who asks, and how; headers, an empty line and the
//	                             body follow. Content-Type, Accept and the token are
//	                             set unless given; "(none)" takes one away
//	-- toolgate --               status and media type, headers, body
//
// An event stream that is not over yet is read in parts:
//
//	-- alice: POST /mcp, stream A: 2 events --   the head and two events
//	-- stream A: 1 event --                      the next event
//	-- stream A: the end --                      whatever comes until it ends
//
// $SESSION is the session id that was given out last, $STREAM what the ids of
// the events of the last event stream have in common, $STREAM_A those of A,
// $STATE the requestState that was given out last.
func TestConversations(t *testing.T) {
	converse(t, "testdata/http/*.txtar", func(o *mcp.Options) { o.PageSize = 4 })
}

// converse holds the door that change makes to the files.
func converse(t *testing.T, pattern string, change func(*mcp.Options)) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			srv, _ := newServer(t, newGate(), change)
			c := httpClient{t: t, url: srv.URL, parts: make(map[string]*part)}
			eventLog(t, file, c.ask)
		})
	}
}

// TestStdioConversations does the same for the stdio door: a section "client"
// is one line sent, "toolgate" the line answered, if one is due. After "client,
// answering" what was waiting for the client's answer is due.
func TestStdioConversations(t *testing.T) {
	files, err := filepath.Glob("testdata/stdio/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations found: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			c := dial(t, newDoor(t, newGate(), nil))
			eventLog(t, file, func(name, line string) string {
				c.Send(strings.TrimSuffix(line, "\n"))
				if m, err := jsonrpc.Decode([]byte(line), jsonrpc.Limits{}); err != nil || m.Kind == jsonrpc.Request || name == "client, answering" {
					return c.Answer()
				}
				return ""
			})
		})
	}
}

// eventLog holds the event streams of all sessions. One lock serves them all;
// it is held briefly, and calls answered as JSON never take it.
func eventLog(t *testing.T, file string, ask func(name, data string) string) {
	t.Helper()
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := &txtar.Archive{Comment: archive.Comment}
	for _, section := range archive.Files {
		if section.Name == "toolgate" {
			continue
		}
		got.Files = append(got.Files, section)
		if answer := ask(section.Name, string(section.Data)); answer != "" {
			got.Files = append(got.Files, txtar.File{Name: "toolgate", Data: []byte(answer)})
		}
	}
	if *update {
		if err := os.WriteFile(file, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(txtar.Format(archive)), string(txtar.Format(got))); diff != "" {
		t.Errorf("%s (-file +door):\n%s", file, diff)
	}
}

// httpClient asks over HTTP.
type httpClient struct {
	t       *testing.T
	url     string
	session string
	stream  string
	state   string           // the last requestState
	parts   map[string]*part // :: name -> a stream that is read in parts
}

// part is an event stream that is read in parts.
type part struct {
	body io.ReadCloser
	r    *bufio.Reader
	id   string
}

// read gives the next events, all that come for n < 0.
func (p *part) read(t *testing.T, n int) string {
	t.Helper()
	var all strings.Builder
	for ; n != 0; n-- {
		for line := ""; line != "\n"; {
			var err error
			if line, err = p.r.ReadString('\n'); err != nil && n < 0 {
				_ = p.body.Close()
				return all.String()
			} else if err != nil {
				t.Fatalf("reading a stream: %v", err)
			}
			if id := eventIDs.FindStringSubmatch(line); id != nil {
				p.id = id[1]
			}
			all.WriteString(line)
		}
	}
	return all.String()
}

// inParts takes "stream A: 2 events" off what a section says.
func inParts(line string) (rest, name string, events int) {
	m := streamPart.FindStringSubmatch(line)
	if m == nil {
		return line, "", 0
	}
	if events = -1; m[4] != "" {
		events, _ = strconv.Atoi(m[4])
	}
	return m[1], m[2], events
}

var streamPart = regexp.MustCompile(`^(?:(.*), )?stream ([A-Z]): (the end|([0-9]+) events?)$`)

// plain is text without what is another one in each run.
func (c *httpClient) plain(text string) string {
	for name, p := range c.parts {
		if p.id != "" {
			text = strings.ReplaceAll(text, p.id, "$STREAM_"+name)
		}
	}
	if state := requestStates.FindStringSubmatch(text); state != nil {
		c.state = state[1]
	}
	for name, value := range map[string]string{"$SESSION": c.session, "$STREAM": c.stream, "$STATE": c.state} {
		if value != "" {
			text = strings.ReplaceAll(text, value, name)
		}
	}
	return text
}

// filled is text with what is another one in each run.
func (c *httpClient) filled(text string) string {
	for name, p := range c.parts {
		text = strings.ReplaceAll(text, "$STREAM_"+name, p.id)
	}
	return strings.NewReplacer("$SESSION", c.session, "$STREAM", c.stream, "$STATE", c.state).Replace(text)
}

// ask sends one section and gives the answer in the form of the files.
func (c *httpClient) ask(name, data string) string {
	c.t.Helper()
	name, stream, events := inParts(name)
	if p := c.parts[stream]; p != nil && name == "" {
		text := p.read(c.t, events)
		return c.plain(text)
	}
	who, line, _ := strings.Cut(name, ": ")
	method, path, _ := strings.Cut(line, " ")
	head, body, _ := strings.Cut("\n"+c.filled(data), "\n\n")
	req, err := http.NewRequest(method, c.url+path, strings.NewReader(strings.TrimSuffix(body, "\n")))
	if err != nil {
		c.t.Fatal(err)
	}
	standardHeaders(req, who)
	for line := range strings.Lines(strings.TrimPrefix(head, "\n")) {
		setHeader(req, strings.TrimSpace(line))
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	if stream != "" {
		p := &part{body: res.Body, r: bufio.NewReader(res.Body)}
		c.parts[stream] = p
		c.t.Cleanup(func() { _ = p.body.Close() })
		text := p.read(c.t, events)
		return c.plain(c.headOf(res) + "\n" + text)
	}
	defer func() { _ = res.Body.Close() }()
	return c.written(res)
}

func standardHeaders(req *http.Request, who string) {
	req.Header.Set("Accept", "application/json, text/event-stream")
	if req.Method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	if who != "nobody" {
		req.Header.Set("Authorization", "Bearer "+who+"-token")
	}
}

func setHeader(req *http.Request, line string) {
	name, value, _ := strings.Cut(line, ": ")
	switch {
	case value == "(none)":
		req.Header[http.CanonicalHeaderKey(name)] = nil
	case name == "Host":
		req.Host = value
	default:
		req.Header.Set(name, value)
	}
}

// written is the answer as the files show it.
func (c *httpClient) written(res *http.Response) string {
	c.t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	b := c.headOf(res)
	if len(body) > 0 {
		b += fmt.Sprintf("\n%s\n", strings.TrimSuffix(string(body), "\n"))
	}
	if id := eventIDs.FindStringSubmatch(b); id != nil {
		c.stream = id[1]
	}
	return c.plain(b)
}

// headOf is the head of an answer as the files show it.
func (c *httpClient) headOf(res *http.Response) string {
	if id := res.Header.Get("Mcp-Session-Id"); id != "" {
		c.session = id
	}
	var b strings.Builder
	fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type"))))
	for _, name := range []string{"Mcp-Session-Id", "Www-Authenticate", "Allow", "Access-Control-Allow-Origin"} {
		if value := res.Header.Get(name); value != "" {
			fmt.Fprintf(&b, "%s: %s\n", name, value)
		}
	}
	return b.String()
}

// requestStates finds what a client is to show when it answers.
var requestStates = regexp.MustCompile(`"requestState":"([^"]+)"`)

// eventIDs finds the id of an event.
var eventIDs = regexp.MustCompile(`(?m)^id: ([A-Z2-7]{26})-[0-9]+$`)

// line is the far end of a stdio door.
type line struct{ *conversation.Line }

// dial starts the stdio door and ends it with the test.
func dial(t testing.TB, d *mcp.Door) *line {
	t.Helper()
	return &line{conversation.Dial(t, d.Serve)}
}

// open does the handshake.
func (c *line) open() *line {
	c.Ask(initialize)
	c.Send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

const initialize = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`
