package search_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/tools/search"
)

// library makes 1,000 pages in a vocabulary that they share, and a question for each: a page is about
// one aspect of one subject, among sentences about those of other pages.
func library() (docs []search.Document, questions []string) {
	rnd := rand.New(rand.NewPCG(1, 2))
	subjects := strings.Fields(`engine bridge harbour orchard lighthouse glacier violin compiler satellite vineyard aqueduct telescope sawmill parliament
		reservoir turbine archive cathedral greenhouse observatory quarry shipyard theatre vaccine windmill`)
	aspects := strings.Fields(`maintenance insurance acoustics drainage inheritance calibration ventilation taxation erosion navigation fermentation
		encryption pollination welding irrigation translation excavation lubrication migration restoration auditing illumination weathering staffing
		procurement cartography refrigeration zoning forestry metallurgy hydrology genetics astronomy liturgy pottery typography falconry beekeeping bookbinding glazing`)
	for i := range 1000 {
		subject, aspect := subjects[i%len(subjects)], aspects[i/len(subjects)]
		var text strings.Builder
		for s := range 12 {
			about, other := subjects[rnd.IntN(len(subjects))], aspects[rnd.IntN(len(aspects))]
			if s%4 == 1 {
				about, other = subject, aspect
			}
			fmt.Fprintf(&text, "The %s has a history of %s in district %d. Records from %d describe how people worked there.\n", about, other, rnd.IntN(500), 1700+rnd.IntN(300))
		}
		docs = append(docs, search.Document{ID: fmt.Sprintf("page-%04d", i), URL: fmt.Sprintf("doc:page-%04d", i), Title: fmt.Sprintf("Notes %d", i), Text: text.String()})
		questions = append(questions, fmt.Sprintf("what is known about %s of %ss?", aspect, subject))
	}
	return docs, questions
}

// Of 200 questions in other words than those of the pages, at least 9 of 10 have their page
// among the first ten results.
func TestRecall(t *testing.T) {
	docs, questions := library()
	x := index(t, docs, nil)
	found, asked := 0, 0
	for i := 0; i < len(questions); i += 5 {
		got, err := x.Search(t.Context(), questions[i], 10)
		if err != nil {
			t.Fatal(err)
		}
		asked++
		for _, r := range got {
			if r.ID == docs[i].ID {
				found++
			}
		}
	}
	if recall := float64(found) / float64(asked); recall < 0.9 {
		t.Errorf("recall@10 is %.2f over %d questions", recall, asked)
	} else {
		t.Logf("recall@10 is %.3f over %d questions", recall, asked)
	}
}
