package ndjson_test

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/internal/ndjson"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A limit of 4 bytes: what is longer arrives with 5, and the next line comes.
func TestLines(t *testing.T) {
	for _, tt := range []struct {
		name, in string
		want     []string
	}{
		{"lines", "a\nbc\n", []string{"a", "bc"}},
		{"no end after the last", "a\nb", []string{"a", "b"}},
		{"empty ones", "\n\r\n\na\n", []string{"a"}},
		{"CR LF", "abcd\r\nb\r\n", []string{"abcd", "b"}},
		{"as long as may be", "abcd\n", []string{"abcd"}},
		{"one too many", "abcde\nb\n", []string{"abcde", "b"}},
		{"many too many", strings.Repeat("x", 1<<20) + "\nb\n", []string{"xxxxx", "b"}},
		{"too many at the end", strings.Repeat("x", 1<<17), []string{"xxxxx"}},
		{"CR inside", "abcd\rx\nb", []string{"abcd\r", "b"}},
		{"nothing", "", nil},
	} {
		for how, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "byte by byte": iotest.OneByteReader} {
			t.Run(tt.name+", "+how, func(t *testing.T) {
				in := wrap(strings.NewReader(tt.in))
				l := ndjson.NewLines(in, 4)
				defer l.Stop(in)
				var got []string
				for line := range l.Next() {
					got = append(got, string(line))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" || l.Err() != nil {
					t.Errorf("error %v, lines (-want +got):\n%s", l.Err(), diff)
				}
			})
		}
	}
}

func TestLinesEnd(t *testing.T) {
	t.Run("error", func(t *testing.T) {
		broken := errors.New("broken")
		in := io.MultiReader(strings.NewReader("a\n"), iotest.ErrReader(broken))
		l := ndjson.NewLines(in, 4)
		defer l.Stop(in)
		for range l.Next() {
		}
		if err := l.Err(); !errors.Is(err, broken) {
			t.Errorf("error %v, want %v", err, broken)
		}
	})
	t.Run("stop while reading", func(t *testing.T) {
		in, far := io.Pipe()
		l := ndjson.NewLines(in, 4)
		l.Stop(in)
		if _, err := far.Write([]byte("a")); err == nil {
			t.Error("the input is still open")
		}
	})
	t.Run("stop while a line waits", func(t *testing.T) {
		in := strings.NewReader("a\nb\n")
		ndjson.NewLines(in, 4).Stop(in)
	})
}
