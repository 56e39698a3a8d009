package house_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// threats are the numbers of IDs in docs/security.md by their letter: invariants I,
// threats A to K, those of upstreams U, those of the sandbox S. Faults have no letter.
var threats = map[string]int{
	"I": 17, "A": 17, "B": 12, "C": 6, "D": 8, "E": 10, "F": 11, "G": 7, "H": 6, "U": 6, "J": 5, "S": 5, "": 32,
}

// TestThreatsHaveTests: in the tables under "Threats and tests" each ID has a row, each
// row a test that exists or, in place of one, a dash and a reason in parentheses.
func TestThreatsHaveTests(t *testing.T) {
	_, tests := declared(t)
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Threats and tests\n")
	section, _, _ = strings.Cut(section, "\n## ")
	missing := []string{"K"}
	for letter, most := range threats {
		for n := range most {
			missing = append(missing, letter+strconv.Itoa(n+1))
		}
	}
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.TrimSpace(strings.ReplaceAll(line, `\|`, "/")), "|")
		if len(cells) < 5 || strings.HasPrefix(line, "|---") || strings.TrimSpace(cells[1]) == "id" {
			continue
		}
		for id := range strings.SplitSeq(cells[1], ",") {
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == strings.TrimSpace(id) })
		}
		named := quoted.FindAllStringSubmatch(cells[3], -1)
		for _, m := range named {
			if !tests[m[1]] && !isFile(t, m[1]) {
				t.Errorf("docs/security.md: %s: test %s does not exist", strings.TrimSpace(cells[1]), m[1])
			}
		}
		_, reason, _ := strings.Cut(cells[2], "(")
		if len(named) == 0 && (strings.TrimSpace(cells[3]) != "–" || len(reason) < 20) {
			t.Errorf("docs/security.md: %s: no test, and no reason", strings.TrimSpace(cells[1]))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		t.Errorf("docs/security.md: no row for %s", strings.Join(missing, ", "))
	}
}
