// Package search is the offline search behind search_internet: a full-text
// index, in memory, over a folder of documents. It finds what is in the folder
// and nothing else, and its results say so.
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

	"github.com/toolgate/toolgate/internal/store"
)

// Provider says in results who answered, and from what.
const Provider = "local documents, offline"

// MaxResults bounds the results of one search.
const MaxResults = 10

// Result is one document found.
type Result struct {
	ID      string  `json:"id"`
	Title   string  `json:"title"`
	URL     string  `json:"url"` // doc:<id> for an embedded document, else file://
	Snippet string  `json:"snippet"`
	Score   float64 `json:"score"` // comparable within one search only, >= 0
}

// Index answers searches over a fixed set of documents. It is safe for
// concurrent use.
type Index struct {
	db  *sql.DB
	len int
}

// SQLite's FTS5 ranks by BM25, in which a word in the title counts double, and
// compares English words by their stem. Result.Score is BM25 with its sign
// changed: FTS5 makes better matches more negative.
const (
	schema = `CREATE VIRTUAL TABLE documents USING fts5 (id UNINDEXED, url UNINDEXED, title, text, tokenize = 'porter unicode61')`
	insert = `INSERT INTO documents (id, url, title, text) VALUES (?, ?, ?, ?)`
	find   = `SELECT id, title, url, snippet(documents, 3, '', '', '… ', 32), -bm25(documents, 0, 0, 2, 1) AS score
		FROM documents WHERE documents MATCH ? ORDER BY score DESC, id LIMIT ?`
)

// New indexes docs, whose ids must differ. The caller must Close the index.
func New(docs []Document) (*Index, error) {
	db, err := store.Memory()
	if err != nil {
		return nil, fmt.Errorf("indexing documents: %w", err)
	}
	if err := fill(db, docs); err != nil {
		return nil, fmt.Errorf("indexing documents: %w", errors.Join(err, db.Close()))
	}
	return &Index{db: db, len: len(docs)}, nil
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
		if _, err := tx.Exec(insert, d.ID, d.URL, d.Title, d.Text); err != nil {
			return fmt.Errorf("%s: %w", d.ID, err)
		}
	}
	return tx.Commit()
}

// Len gives the number of documents.
func (x *Index) Len() int { return x.len }

// Close frees the index.
func (x *Index) Close() error { return x.db.Close() }

// Search gives the documents that match any word of text, best first, at most
// n of them and never more than MaxResults. Operators and quotes in text have
// no meaning. No match is no error: the results are empty.
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
	rows, err := x.db.QueryContext(ctx, find, query, n)
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	defer rows.Close() //nolint:errcheck // rows.Err has what matters
	for rows.Next() {
		var r Result
		if err := rows.Scan(&r.ID, &r.Title, &r.URL, &r.Snippet, &r.Score); err != nil {
			return nil, fmt.Errorf("searching: %w", err)
		}
		r.Snippet = shorten(r.Snippet)
		results = append(results, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	return results, nil
}

// maxWords bounds the words of one query that are searched for.
const maxWords = 64

// stopWords are too frequent in English to find anything by.
var stopWords = strings.Fields(`a an and are as at be but by for from if in into is it no not of on or
	such that the their then there these they this to was were what which who will with`)

// matchAny gives the FTS5 query that matches any word of text, "" when text has
// no word to search for. A word is letters, marks and digits, and each is
// quoted, so that nothing in text is an operator of the query language.
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

// snippetLen bounds a snippet, in bytes, its last ellipsis not counted.
const snippetLen = 280

// shorten puts text on one line and cuts it after a whole word.
func shorten(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= snippetLen {
		return text
	}
	text = strings.ToValidUTF8(text[:snippetLen], "")
	if i := strings.LastIndexByte(text, ' '); i > 0 {
		text = text[:i]
	}
	return text + " …"
}
