// Package search is the offline search behind search_internet: a full-text
// index, in memory, over a folder of documents. It finds what is in the folder
// and nothing else, and says so.
package search

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/blevesearch/bleve/v2"
	_ "github.com/blevesearch/bleve/v2/analysis/lang/en" // the analyzer that the mapping names
	"github.com/blevesearch/bleve/v2/mapping"
	"github.com/blevesearch/bleve/v2/search"
	"github.com/blevesearch/bleve/v2/search/query"
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
	index bleve.Index
	docs  map[string]Document
}

// New indexes docs, whose ids must differ.
func New(docs []Document) (*Index, error) {
	index, err := bleve.NewMemOnly(fields())
	if err != nil {
		return nil, fmt.Errorf("indexing documents: %w", err)
	}
	x := &Index{index: index, docs: make(map[string]Document, len(docs))}
	batch := index.NewBatch()
	for _, d := range docs {
		if _, twice := x.docs[d.ID]; twice {
			return nil, fmt.Errorf("indexing documents: two have the id %q", d.ID)
		}
		x.docs[d.ID] = d
		if err := batch.Index(d.ID, map[string]any{"title": d.Title, "text": d.Text}); err != nil {
			return nil, fmt.Errorf("indexing %s: %w", d.ID, err)
		}
	}
	if err := index.Batch(batch); err != nil {
		return nil, fmt.Errorf("indexing documents: %w", err)
	}
	return x, nil
}

// fields maps both members of a document to English text whose words can be
// located.
func fields() mapping.IndexMapping {
	text := bleve.NewTextFieldMapping()
	text.Analyzer = "en"
	text.Store = false
	text.IncludeInAll = false
	doc := bleve.NewDocumentStaticMapping()
	doc.AddFieldMappingsAt("title", text)
	doc.AddFieldMappingsAt("text", text)
	m := bleve.NewIndexMapping()
	m.DefaultMapping = doc
	return m
}

// Len gives the number of documents.
func (x *Index) Len() int { return len(x.docs) }

// Close frees the index.
func (x *Index) Close() error { return x.index.Close() }

// Search gives the documents that match the words of text, best first, at most
// n of them and never more than MaxResults. The words are only words: no query
// language is understood. No match is no error.
func (x *Index) Search(ctx context.Context, text string, n int) ([]Result, error) {
	if n < 1 || n > MaxResults {
		return nil, fmt.Errorf("searching: num_results is %d, must be 1 to %d", n, MaxResults)
	}
	if strings.TrimSpace(text) == "" {
		return nil, fmt.Errorf("searching: the query is empty")
	}
	req := bleve.NewSearchRequestOptions(words(text), n, 0, false)
	req.IncludeLocations = true
	req.SortBy([]string{"-_score", "_id"})
	found, err := x.index.SearchInContext(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("searching: %w", err)
	}
	results := make([]Result, 0, len(found.Hits))
	for _, hit := range found.Hits {
		d := x.docs[hit.ID]
		results = append(results, Result{ID: d.ID, Title: d.Title, URL: d.URL, Snippet: snippet(d.Text, hit), Score: hit.Score})
	}
	return results, nil
}

// words matches any word of text; a word in the title counts double.
func words(text string) query.Query {
	inText, inTitle := bleve.NewMatchQuery(text), bleve.NewMatchQuery(text)
	inText.SetField("text")
	inTitle.SetField("title")
	inTitle.SetBoost(2)
	return bleve.NewDisjunctionQuery(inText, inTitle)
}

// snippetLen is the aim for the length of a snippet, in bytes.
const snippetLen = 240

// snippet cuts the part of text with the most matches out at word boundaries.
func snippet(text string, hit *search.DocumentMatch) string {
	var starts []int
	for _, locations := range hit.Locations["text"] {
		for _, l := range locations {
			starts = append(starts, int(l.Start))
		}
	}
	from := densest(starts)
	from = max(0, min(from-snippetLen/4, len(text)-snippetLen))
	to := min(len(text), from+snippetLen)
	return trim(text, from, to)
}

// densest gives the first of the positions that has the most others within
// half a snippet behind it; 0 when there are none.
func densest(starts []int) int {
	best, most := 0, 0
	for _, s := range starts {
		n := 0
		for _, other := range starts {
			if other >= s && other < s+snippetLen/2 {
				n++
			}
		}
		if n > most || n == most && s < best {
			best, most = s, n
		}
	}
	return best
}

// trim cuts text to whole words in [from, to) and marks what was left out.
func trim(text string, from, to int) string {
	head, tail := "", ""
	if from > 0 {
		head = "… "
		if i := strings.IndexAny(text[from:to], " \n"); i >= 0 {
			from += i
		}
	}
	if to < len(text) {
		tail = " …"
		if i := strings.LastIndexAny(text[from:to], " \n"); i > 0 {
			to = from + i
		}
	}
	for from < to && !utf8.RuneStart(text[from]) {
		from++
	}
	for to < len(text) && to > from && !utf8.RuneStart(text[to]) {
		to--
	}
	return head + strings.Join(strings.Fields(text[from:to]), " ") + tail
}
