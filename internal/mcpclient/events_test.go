package mcpclient_test

import (
	"errors"
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
		if event.Kind == "" || event.Kind == "message" {
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
	for _, long := range []string{"data: " + strings.Repeat("x", 101), strings.Repeat("data: xxxxxxxx\n", 20), strings.Repeat("x", 200)} {
		if got, _, err := readEvents(strings.NewReader(long), 100); err == nil || got != nil {
			t.Errorf("%.20q…: %q, %v", long, got, err)
		}
	}
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
