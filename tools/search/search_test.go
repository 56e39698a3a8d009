package search_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/tools/search"
)

func index(t testing.TB, docs []search.Document, err error) *search.Index {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	x, err := search.New(docs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

func embedded(t testing.TB) *search.Index {
	t.Helper()
	docs, err := search.Embedded()
	return index(t, docs, err)
}

func TestEmbeddedDocumentsAreFound(t *testing.T) {
	if docs, err := search.Embedded(); len(docs) < 15 {
		t.Fatalf("only %d documents are embedded: %v", len(docs), err)
	}
	x := embedded(t)
	for query, want := range map[string]string{
		"model context protocol":   "model-context-protocol",
		"token bucket":             "rate-limits",
		"who invented bookkeeping": "double-entry",
		"hash chain of records":    "audit-logs",
		"Rego policies undefined":  "open-policy-agent",
		"approve a held action":    "human-approval",
	} {
		got, err := x.Search(t.Context(), query, 3)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 || got[0].ID != want || got[0].URL != "doc:"+want || got[0].Title == "" || got[0].Snippet == "" || got[0].Score <= 0 {
			t.Errorf("%q: %+v, want %s first", query, got, want)
		}
	}
}

func TestResultsAreBoundedAndStable(t *testing.T) {
	x := embedded(t)
	first, err := x.Search(t.Context(), "tool call policy agent wallet", 10)
	if err != nil || len(first) != 10 {
		t.Fatalf("%d results, %v; want 10", len(first), err)
	}
	for range 5 {
		again, err := x.Search(t.Context(), "tool call policy agent wallet", 10)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(first, again); diff != "" {
			t.Fatalf("the same search differs:\n%s", diff)
		}
	}
	for i, r := range first[1:] {
		if r.Score > first[i].Score {
			t.Errorf("result %d has a better score than the one before", i+1)
		}
	}
}

func TestSearchRefuses(t *testing.T) {
	x := embedded(t)
	for _, c := range []struct {
		query string
		n     int
	}{{"x", 0}, {"x", -1}, {"x", 11}, {" \t", 5}, {"", 5}} {
		if got, err := x.Search(t.Context(), c.query, c.n); err == nil {
			t.Errorf("%q, %d: got %v", c.query, c.n, got)
		}
	}
	if got, err := x.Search(t.Context(), "xyzzyplugh", 5); err != nil || got == nil || len(got) != 0 {
		t.Errorf("no match: %v, %v", got, err)
	}
}

// Operators of the index's query language in a query have no meaning: only the
// words count.
func TestOperatorsAreWords(t *testing.T) {
	x := index(t, []search.Document{{ID: "z", Title: "Zebra", Text: "stripes"}, {ID: "o", Title: "Other", Text: "near or not"}}, nil)
	for query, want := range map[string]int{
		`zebra"`: 1, `"zebra`: 1, `zebra*`: 1, `zeb*`: 0, `title:zebra`: 1, `{title text}: zebra`: 1, `-zebra`: 1, `zebra NOT stripes`: 1,
		`zebra AND nothing`: 1, `NEAR(zebra stripes, 1)`: 2, `^zebra`: 1, `zebra') OR 1=1 --`: 1, "zebra\x00": 1, "zebra\xff": 1,
		`"`: 0, `*`: 0, `AND`: 0, `( ) : ^ - +`: 0, "\x00": 0, "\xff\xfe": 0, "\u0301": 0, "the": 0, "not": 0,
		strings.Repeat("(", 5000) + "zebra": 1, strings.Repeat("q OR ", 5000): 0, "zebra " + manyWords(5000): 1,
	} {
		got, err := x.Search(t.Context(), query, 5)
		if err != nil || len(got) != want {
			t.Errorf("%.40q: %d results, %v; want %d", query, len(got), err, want)
		}
	}
}

func manyWords(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "word%d ", i)
	}
	return b.String()
}

// A cancelled search leaves the index usable.
func TestACancelledSearchLeavesTheIndex(t *testing.T) {
	x := embedded(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := x.Search(ctx, "token bucket", 5); err == nil {
		t.Error("a cancelled search succeeds")
	}
	if got, err := x.Search(t.Context(), "token bucket", 5); err != nil || len(got) == 0 {
		t.Errorf("after the cancelled search: %v, %v", got, err)
	}
}

func TestTheSnippetShowsTheMatch(t *testing.T) {
	x := index(t, []search.Document{{ID: "d", Text: strings.Repeat("filler text ", 200) + "a zebra\nruns " + strings.Repeat("more words ", 200)}}, nil)
	got, err := x.Search(t.Context(), "zebras", 1)
	if err != nil || len(got) != 1 || !strings.Contains(got[0].Snippet, "a zebra runs") || !strings.HasPrefix(got[0].Snippet, "… ") || !strings.HasSuffix(got[0].Snippet, "…") {
		t.Errorf("%+v, %v", got, err)
	}
}

// The time of a search is linear in the size of the text.
func TestManyMatchesInOneDocument(t *testing.T) {
	x := index(t, []search.Document{{ID: "d", Text: strings.Repeat("zebra filler ", 80_000)}}, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if got, err := x.Search(ctx, "zebra filler", 1); err != nil || len(got) != 1 {
		t.Errorf("%d results, %v", len(got), err)
	}
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFolder(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	write(t, outside, map[string]string{"secret.md": "zebra"})
	write(t, dir, map[string]string{
		"one.md": "# First\n\nabout a zebra", "sub/two.txt": "no heading, a zebra", "sub/two.md": "# Two\nzebra",
		".hidden/x.md": "zebra", ".x.md": "zebra", "image.png": "zebra",
	})
	if err := os.Symlink(filepath.Join(outside, "secret.md"), filepath.Join(dir, "link.md")); err != nil {
		t.Fatal(err)
	}
	docs, err := search.Folder(dir)
	x := index(t, docs, err)
	got, err := x.Search(t.Context(), "zebra", 10)
	if err != nil {
		t.Fatal(err)
	}
	titles := map[string]string{}
	for _, r := range got {
		titles[r.ID] = r.Title
		if !strings.HasPrefix(r.URL, "file:///") {
			t.Errorf("%s has address %s", r.ID, r.URL)
		}
	}
	want := map[string]string{"one": "First", "sub/two": "Two", "sub/two.txt": "sub/two.txt"}
	if diff := cmp.Diff(want, titles); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
}

func TestFolderRefuses(t *testing.T) {
	for name, files := range map[string]map[string]string{
		"no documents":      {"a.bin": "x"},
		"no text":           {"a.md": "\xff\xfe"},
		"a file over bound": {"a.md": strings.Repeat("x", 1<<20+1)},
	} {
		dir := t.TempDir()
		write(t, dir, files)
		if docs, err := search.Folder(dir); err == nil {
			t.Errorf("%s: %d documents", name, len(docs))
		}
	}
	if _, err := search.Folder(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing folder is no error")
	}
}

func FuzzSnippet(f *testing.F) {
	f.Add("zebra", "a zebra")
	f.Add("é", strings.Repeat("é ü 🜁 zebra ", 60))
	f.Add("a b", strings.Repeat("x", 600)+" a b")
	f.Fuzz(func(t *testing.T, query, text string) {
		if len(text) > 1<<16 || len(query) > 1<<10 {
			t.Skip()
		}
		text = strings.ToValidUTF8(text, "?")
		x := index(t, []search.Document{{ID: "d", Title: "t", Text: text}}, nil)
		got, err := x.Search(t.Context(), query, 1)
		if err != nil {
			if strings.TrimSpace(query) != "" {
				t.Fatalf("%q: %v", query, err)
			}
			return
		}
		for _, r := range got {
			if !utf8.ValidString(r.Snippet) || len(r.Snippet) > 300 {
				t.Fatalf("snippet of %d bytes %q", len(r.Snippet), r.Snippet)
			}
		}
	})
}

func BenchmarkSearch(b *testing.B) {
	x := embedded(b)
	for b.Loop() {
		if _, err := x.Search(b.Context(), "approval of a wallet transfer", 10); err != nil {
			b.Fatal(err)
		}
	}
}
