package search

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Document is one text in the index.
type Document struct {
	ID    string // path in its folder, without the extension
	Title string // first heading, or the ID
	URL   string
	Text  string // without the heading
}

// The bounds of a folder. Above them Folder is an error, not a partial index.
const (
	maxDocuments = 10_000
	maxDocument  = 1 << 20 // bytes of one file
)

//go:embed documents/*.md
var embedded embed.FS

// Embedded returns the documents that are part of the program.
func Embedded() ([]Document, error) {
	sub, err := fs.Sub(embedded, "documents")
	if err != nil {
		return nil, fmt.Errorf("reading embedded documents: %w", err)
	}
	return read(sub, func(name string) string { return "doc:" + strings.TrimSuffix(name, path.Ext(name)) })
}

// Folder reads the files *.md, *.markdown and *.txt below dir. It skips hidden files
// and folders and follows no links. A folder without a document is an error.
func Folder(dir string) ([]Document, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("reading documents: %w", err)
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, fmt.Errorf("reading documents: %w", err)
	}
	defer root.Close() //nolint:errcheck // opened for reading only
	docs, err := read(root.FS(), func(name string) string {
		return (&url.URL{Scheme: "file", Path: filepath.ToSlash(filepath.Join(abs, filepath.FromSlash(name)))}).String()
	})
	if err == nil && len(docs) == 0 {
		err = fmt.Errorf("reading documents: no .md, .markdown or .txt file in %s", abs)
	}
	return docs, err
}

func read(from fs.FS, address func(name string) string) ([]Document, error) {
	var docs []Document
	ids := map[string]bool{}
	err := fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name != "." && strings.HasPrefix(d.Name(), ".") {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !readable(name) {
			return nil
		}
		if len(docs) == maxDocuments {
			return fmt.Errorf("more than %d documents", maxDocuments)
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Size() > maxDocument {
			return fmt.Errorf("%s: larger than %d bytes", name, maxDocument)
		}
		doc, err := readOne(from, name)
		if err != nil {
			return err
		}
		doc.URL = address(name)
		docs = append(docs, doc.named(name, ids))
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading documents: %w", err)
	}
	return docs, nil
}

// named gives d the id of its file, and that for a title when it has none.
func (d Document) named(name string, taken map[string]bool) Document {
	if d.ID = strings.TrimSuffix(name, path.Ext(name)); taken[d.ID] {
		d.ID = name // a.md next to a.txt
	}
	taken[d.ID] = true
	d.Title = cmp.Or(d.Title, d.ID)
	return d
}

func readable(name string) bool {
	switch strings.ToLower(path.Ext(name)) {
	case ".md", ".markdown", ".txt":
		return true
	}
	return false
}

func readOne(from fs.FS, name string) (Document, error) {
	data, err := fs.ReadFile(from, name)
	if err != nil {
		return Document{}, err
	}
	if !utf8.Valid(data) {
		return Document{}, fmt.Errorf("%s: not UTF-8 text", name)
	}
	title, text := split(string(data))
	return Document{Title: title, Text: text}, nil
}

// split takes the heading of the first level off the start of a text.
func split(text string) (title, rest string) {
	text = strings.TrimSpace(text)
	first, after, _ := strings.Cut(text, "\n")
	if heading, ok := strings.CutPrefix(first, "# "); ok {
		return strings.TrimSpace(heading), strings.TrimSpace(after)
	}
	return "", text
}
