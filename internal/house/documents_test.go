package house_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// documents returns the text of each document of the project, by its path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	top, texts := corpus.Checkout(t), map[string]string{}
	paths := []string{"README.md", "CHANGELOG.md", "SECURITY.md"}
	err := fs.WalkDir(os.DirFS(top), "docs", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".md") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil || len(paths) < 12 {
		t.Fatalf("%d documents, %v", len(paths), err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(path)))
		if err != nil {
			t.Fatal(err)
		}
		texts[path] = string(text)
	}
	return texts
}

// TestDocumentsNameTests holds that every test and benchmark which a document names
// exists.
func TestDocumentsNameTests(t *testing.T) {
	_, tests := declared(t)
	exists := map[string]bool{}
	for name := range tests {
		_, function, _ := strings.Cut(filepath.Base(name), ".")
		exists[function] = true
	}
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	for path, text := range documents(t) {
		for _, name := range named.FindAllString(text, -1) {
			if !exists[name] {
				t.Errorf("%s: %s is not declared", path, name)
			}
		}
	}
}

// TestLinksOfDocuments holds that each relative link of a document leads to a file, and
// its anchor to a heading of that document.
func TestLinksOfDocuments(t *testing.T) {
	texts, anchors := documents(t), map[string]bool{}
	code, heading := regexp.MustCompile("(?ms)^```.*?^```"), regexp.MustCompile(`(?m)^#+ (.+)$`)
	dropped := regexp.MustCompile(`[^\pL\pN_ -]`)
	for path, text := range texts {
		for _, h := range heading.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
			anchor := path + "#" + strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")
			if anchors[anchor] {
				t.Errorf("%s has two headings %q", path, h[1])
			}
			anchors[anchor] = true
		}
	}
	for path, text := range texts {
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
			file, anchor, anchored := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(path), file))
			}
			switch _, err := os.Stat(filepath.Join(corpus.Checkout(t), filepath.FromSlash(target))); {
			case strings.Contains(m[1], "://"):
			case err != nil:
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
			case anchored && !anchors[target+"#"+anchor]:
				t.Errorf("%s: the link %s leads to no heading", path, m[1])
			}
		}
	}
}

// TestArchitectureNamesPackages holds that docs/architecture.md names every package of
// the import table, and no place that does not exist.
func TestArchitectureNamesPackages(t *testing.T) {
	text := documents(t)["docs/architecture.md"]
	for pkg := range mayImport {
		if !strings.Contains(text, "`"+pkg+"`") && !strings.Contains(text, "`"+filepath.ToSlash(filepath.Dir(pkg))+"/...`") && pkg != "docs/schemas" {
			t.Errorf("docs/architecture.md does not name %s", pkg)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z.]+(?:/[a-z._]+)+)`").FindAllStringSubmatch(text, -1) {
		if _, err := os.Stat(filepath.Join(corpus.Checkout(t), filepath.FromSlash(strings.TrimSuffix(m[1], "/...")))); err != nil {
			t.Errorf("docs/architecture.md names %s, which does not exist", m[1])
		}
	}
}
