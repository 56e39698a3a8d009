// Package search is the offline search of search_internet: a full-text index in
// memory over a folder of documents. Results come from the folder only, and say so.
//
//	docs, err := search.Folder("handbook")
//	index, err := search.New(docs)
//	results, err := index.Search(ctx, "approval of a transfer", 5)
package search

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/toolgate/toolgate/internal/store"
)

// Provider is the provider that every result names.
const Provider = "local documents, offline"

// MaxResults is the largest number of results of one search.
const MaxResults = 10

// Result is one document or page.
type Result struct {
	ID          string  `json:"id"`
	Title       string  `json:"title"`
	URL         string  `json:"url"` // doc:<id> for an embedded document, file:// for one of a folder
	Snippet     string  `json:"snippet"`
	PublishedAt string  `json:"published_at,omitzero"` // RFC 3339, or its date alone; "" = not known
	Source      string  `json:"source"`                // the site, or the kind of documents
	Provider    string  `json:"provider"`
	Score       float64 `json:"score,omitzero"` // comparable within one search of documents only; 0 = none
}

// Index answers searches over a fixed set of documents. It is safe for
// concurrent use.
type Index struct {
	db *sql.DB
}

// SQLite's FTS5 ranks by BM25, in which a word in the title counts double, and
// compares English words by their stem. It makes better matches more negative.
//
// A row is a passage of a document, because FTS5 takes time quadratic in the
// matches of a row to choose a snippet.
const (
	passageLen = 1 << 10 // bytes, at most

	schema = `CREATE VIRTUAL TABLE passages USING fts5 (id UNINDEXED, url UNINDEXED, title, text, tokenize = 'porter unicode61')`
	insert = `INSERT INTO passages (id, url, title, text) VALUES (?, ?, ?, ?)`
	find   = `SELECT id, url, title, snippet(passages, 3, '', '', '… ', 32), -rank FROM passages
		WHERE passages MATCH ? AND rank MATCH 'bm25(0, 0, 2, 1)' ORDER BY rank`
)

// New indexes docs, whose IDs must differ. The caller must Close the index.
func New(docs []Document) (*Index, error) {
	db, err := store.Memory()
	if err != nil {
		return nil, fmt.Errorf("indexing documents: %w", err)
	}
	if err := fill(db, docs); err != nil {
		return nil, fmt.Errorf("indexing documents: %w", errors.Join(err, db.Close()))
	}
	return &Index{db: db}, nil
}

// fill writes docs to a new table, in one transaction.
func fill(db *sql.DB, docs []Document) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after Commit there is nothing to roll back
	if _, err := tx.Exec(schema); err != nil {
		return err
	}
	seen := make(map[string]bool, len(docs))
	for _, d := range docs {
		if seen[d.ID] {
			return fmt.Errorf("two have the id %q", d.ID)
		}
		seen[d.ID] = true
		for passage, rest := cut(d.Text, passageLen); ; passage, rest = cut(rest, passageLen) {
			if _, err := tx.Exec(insert, d.ID, d.URL, d.Title, passage); err != nil {
				return fmt.Errorf("%s: %w", d.ID, err)
			}
			if rest == "" {
				break
			}
		}
	}
	return tx.Commit()
}

// cut splits text after at most n bytes, between two words where it has any.
func cut(text string, n int) (head, rest string) {
	if len(text) <= n {
		return text, ""
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	if i := strings.LastIndexAny(text[:n], " \n"); i > 0 {
		n = i
	}
	return text[:n], text[n:]
}

// Provider names the index in results.
func (x *Index) Provider() string { return Provider }

// Close frees the index.
func (x *Index) Close() error { return x.db.Close() }

// Search returns the documents that match any word of text, best first: at most n,
// from 1 to MaxResults. Operators and quotes in text have no meaning. Without a
// match the result is empty.
func (x *Index) Search(ctx context.Context, text string, n int) ([]Result, error) {
	if n < 1 || n > MaxResults {
		return nil, fmt.Errorf("searching: num_results is %d, must be 1 to %d", n, MaxResults)
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("searching: the query is empty")
	}
	results := make([]Result, 0, n)
	query := matchAny(text)
	if query == "" {
		return results, nil
	}
	rows, err := x.db.QueryContext(ctx, find, query)
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	defer rows.Close() // rows.Err is checked below
	for len(results) < n && rows.Next() {
		r := Result{Source: "documents", Provider: Provider}
		if err := rows.Scan(&r.ID, &r.URL, &r.Title, &r.Snippet, &r.Score); err != nil {
			return nil, fmt.Errorf("searching: %w", err)
		}
		if !slices.ContainsFunc(results, func(better Result) bool { return better.ID == r.ID }) {
			r.Snippet = shorten(r.Snippet)
			results = append(results, r)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	return results, nil
}

// maxWords bounds the words of one query that are searched for.
const maxWords = 64

// stopWords are too frequent in English to be searched for.
var stopWords = strings.Fields(`a an and are as at be but by for from if in into is it no not of on or
	such that the their then there these they this to was were what which who will with`)

// matchAny returns the FTS5 query that matches any word of text, "" if text has no
// word. A word consists of letters, marks and digits. Each is quoted, so that
// nothing in text is an operator of the query language.
func matchAny(text string) string {
	var words []string
	for word := range strings.FieldsFuncSeq(strings.ToLower(text), func(r rune) bool {
		return !unicode.In(r, unicode.Letter, unicode.Mark, unicode.Number)
	}) {
		quoted := `"` + word + `"`
		if len(words) < maxWords && !slices.Contains(stopWords, word) && !slices.Contains(words, quoted) {
			words = append(words, quoted)
		}
	}
	return strings.Join(words, " OR ")
}

// snippetLen is the largest size of a snippet in bytes, without the ellipsis.
const snippetLen = 280

// shorten puts text on one line and bounds its length.
func shorten(text string) string {
	head, rest := cut(strings.Join(strings.Fields(text), " "), snippetLen)
	if rest != "" {
		head += " …"
	}
	return head
}
