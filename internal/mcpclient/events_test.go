package mcpclient_test

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/mcpclient"
)

// readEvents returns the messages of an event stream, the id of its last event
// and why it could not be read to its end.
func readEvents(in io.Reader, most int) (all []string, last string, err error) {
	var at mcpclient.Position
	events := mcpclient.NewEvents(in, most, &at)
	for {
		event, err := events.Next()
		if errors.Is(err, io.EOF) {
			return all, at.Last, nil
		}
		if err != nil {
			return all, at.Last, err
		}
		if event.Long != nil {
			all = append(all, fmt.Sprintf("too long, id %s", event.Long.ID()))
		} else if event.Kind == "" || event.Kind == "message" {
			all = append(all, string(event.Data))
		}
	}
}

// A stream is read the same however it is cut, and only messages count.
func TestEvents(t *testing.T) {
	for _, test := range []struct {
		name, stream string
		want         []string
		last         string
	}{
		{"line ends", "data: 1\n\ndata: 2\r\n\r\ndata: 3\r\rdata: 4\r\n\n", []string{"1", "2", "3", "4"}, ""},
		{"a byte order mark", "\ufeffdata: 1\n\n", []string{"1"}, ""},
		{"fields", "data:1\ndata: 2\ndata\ndata:  3\nfoo: bar\n:x\n\n", []string{"1\n2\n\n 3"}, ""},
		{"kinds", "event: message\ndata: 1\n\nevent: endpoint\ndata: 2\n\ndata: 3\n\n", []string{"1", "3"}, ""},
		{"ids", "id: a\ndata: 1\n\nid: b\n\ndata: 2\n\n", []string{"1", "2"}, "b"},
		{"an id with NUL", "id: a\n\nid: b\x00\n\n", nil, "a"},
		{"the last one is whole", "id: a\ndata: {}", []string{"{}"}, "a"},
		{"the last one is not", "id: a\n\nid: b\ndata: {\"x", nil, "a"},
		{"the last one has no data", "id: a\n\nid: b\n", nil, "a"},
	} {
		got, last, err := readEvents(strings.NewReader(test.stream), 100)
		if !slices.Equal(got, test.want) || last != test.last || err != nil {
			t.Errorf("%s: %q, last %q, %v", test.name, got, last, err)
		}
	}
}

// An event that is too long is passed over, and the stream continues.
func TestLongEvents(t *testing.T) {
	x := strings.Repeat("x", 101)
	for _, test := range []struct{ name, long, want string }{
		{"one line", "data: " + x + "\n\n", "too long, id "},
		{"its id", `data: {"result":{"a":"` + x + x + `"},"id":"5"}` + "\n\n", `too long, id "5"`},
		{"its id in another line", `data: {"result":{"a":"` + x + "\"},\r\ndata:\"id\":\"5\"}\r\n\r\n", `too long, id "5"`},
		{"many lines", strings.Repeat("data: xxxxxxxx\n", 20) + "\n", "too long, id "},
		{"no space", "data:" + x + "\n\n", "too long, id "},
		{"a comment", ":" + x + x + "\n\n", ""},
		{"an id", "id: " + x + x + "\n\n", ""},
		{"no field", x + x + "\r\r", ""},
		{"as long as may be", "data: " + x[1:] + "\n\n", x[1:]},
	} {
		for _, after := range []string{"", "id: a\ndata: next\n\n"} {
			want, last := test.want, ""
			if after != "" {
				want, last = strings.TrimPrefix(want+",next", ","), "a"
			}
			for _, in := range []io.Reader{strings.NewReader(test.long + after), iotest.OneByteReader(strings.NewReader(test.long + after))} {
				got, at, err := readEvents(in, 100)
				if strings.Join(got, ",") != want || at != last || err != nil {
					t.Errorf("%s: %q, last %q, %v", test.name, got, at, err)
				}
			}
		}
	}
	if got, _, err := readEvents(strings.NewReader("data: "+x), 100); len(got) != 1 || err != nil {
		t.Errorf("at the end: %q, %v", got, err)
	}
}

// An eager reader of the answer to one call returns what is too long before its end, and
// passes over the rest; a notification that is too long it awaits.
func TestEagerEvents(t *testing.T) {
	x := strings.Repeat("x", 200)
	for _, stream := range []string{
		`data: {"id":"5","result":"` + x + x + `"}` + "\ndata: more\n\ndata: next\n\n", "data: " + x + "\ndata: " + x + "\n\ndata: next\n\n",
		`data: {"method":"x","params":"` + x + `"}` + "\n\ndata: next\n\n", "data: " + x[:95] + "\n" + "data: " + x + "\n\ndata: next\n\n",
	} {
		for _, in := range []io.Reader{strings.NewReader(stream), iotest.OneByteReader(strings.NewReader(stream))} {
			var got []string
			e := mcpclient.Endpoint{MaxBytes: 100}
			err := e.Follow(t.Context(), in, mcpclient.Session{}, false, func(event mcpclient.Event) {
				got = append(got, fmt.Sprintf("%s%t", event.Data, event.Long != nil))
			}, func() bool { return false })
			if err == nil || !slices.Equal(got, []string{"true", "nextfalse"}) {
				t.Errorf("%.20q: %q, %v", stream, got, err)
			}
		}
	}
	endless := io.MultiReader(strings.NewReader(`data: {"id":"5","result":"`), forever{})
	calls := 0
	e := mcpclient.Endpoint{MaxBytes: 100}
	err := e.Follow(t.Context(), endless, mcpclient.Session{}, false, func(mcpclient.Event) { calls++ }, func() bool { return calls > 0 })
	if err != nil || calls != 1 {
		t.Errorf("without an end: %d calls, %v", calls, err)
	}
}

// forever is a text without an end.
type forever struct{}

func (forever) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func FuzzEvents(f *testing.F) {
	for _, s := range []string{"data: 1\n\n", "id: a\r\ndata: {}\r\n\r\n", "\ufeffdata:x\r\r: c\nretry: 10\n\n", "event: x\ndata: y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, stream string) {
		whole, last, err := readEvents(strings.NewReader(stream), 50)
		bytewise, last1, err1 := readEvents(iotest.OneByteReader(strings.NewReader(stream)), 50)
		if diff := cmp.Diff(whole, bytewise); diff != "" || last != last1 || (err == nil) != (err1 == nil) {
			t.Fatalf("cut differently: %q and %q, %v and %v: %s", last, last1, err, err1, diff)
		}
		if strings.ContainsAny(last, "\r\n\x00") {
			t.Fatalf("last id %q", last)
		}
		var again strings.Builder
		for _, data := range whole {
			if strings.HasPrefix(data, "too long") {
				return
			}
			if len(data) > 50 || strings.Contains(data, "\r") {
				t.Fatalf("data %q", data)
			}
			again.WriteString("data: " + strings.ReplaceAll(data, "\n", "\ndata: ") + "\n\n")
		}
		back, _, err := readEvents(strings.NewReader(again.String()), 50)
		if diff := cmp.Diff(whole, back); diff != "" || err != nil {
			t.Fatalf("read again: %v, %s", err, diff)
		}
	})
}
