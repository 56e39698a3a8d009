package schema_test

import (
	"encoding/json"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/schema"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// excluded are the groups of the suite that we do not pass, as
// draft/file/description; a description that is "*" stands for the whole file.
// Each has a reason, and one that no longer applies fails the test.
var excluded = map[string]string{
	"draft4/refRemote.json/*":       remote,
	"draft6/refRemote.json/*":       remote,
	"draft7/refRemote.json/*":       remote,
	"draft2019-09/refRemote.json/*": remote,
	"draft2020-12/refRemote.json/*": remote,

	"draft2019-09/vocabulary.json/schema that uses custom metaschema with with no validation vocabulary": remote,
	"draft2019-09/vocabulary.json/ignore unrecognized optional vocabulary":                               remote,
	"draft2020-12/vocabulary.json/schema that uses custom metaschema with with no validation vocabulary": remote,
	"draft2020-12/vocabulary.json/ignore unrecognized optional vocabulary":                               remote,

	"draft2020-12/dynamicRef.json/strict-tree schema, guards against misspelled properties":       remote,
	"draft2020-12/dynamicRef.json/tests for implementation dynamic anchor and reference link":     remote,
	"draft2020-12/dynamicRef.json/$ref and $dynamicAnchor are independent of order - $defs first": remote,
	"draft2020-12/dynamicRef.json/$ref and $dynamicAnchor are independent of order - $ref first":  remote,
	"draft2020-12/dynamicRef.json/$ref to $dynamicRef finds detached $dynamicAnchor":              remote,

	"draft4/dependencies.json/dependencies with escaped characters":            control,
	"draft6/dependencies.json/dependencies with escaped characters":            control,
	"draft7/dependencies.json/dependencies with escaped characters":            control,
	"draft2019-09/dependentRequired.json/dependencies with escaped characters": control,
	"draft2020-12/dependentRequired.json/dependencies with escaped characters": control,
	"draft2019-09/dependentSchemas.json/dependencies with escaped characters":  control,
	"draft2020-12/dependentSchemas.json/dependencies with escaped characters":  control,
	"draft4/properties.json/properties with escaped characters":                control,
	"draft6/properties.json/properties with escaped characters":                control,
	"draft7/properties.json/properties with escaped characters":                control,
	"draft2019-09/properties.json/properties with escaped characters":          control,
	"draft2020-12/properties.json/properties with escaped characters":          control,
	"draft4/required.json/required with escaped characters":                    control,
	"draft6/required.json/required with escaped characters":                    control,
	"draft7/required.json/required with escaped characters":                    control,
	"draft2019-09/required.json/required with escaped characters":              control,
	"draft2020-12/required.json/required with escaped characters":              control,
}

// The reasons, in words that the refusal itself must have.
const (
	remote  = "references outside the schema are not followed"
	control = "control character in a member name"
)

type group struct {
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
	Tests       []struct {
		Description string          `json:"description"`
		Data        json.RawMessage `json:"data"`
		Valid       bool            `json:"valid"`
	} `json:"tests"`
}

var dialects = map[string]string{
	"draft4":       "http://json-schema.org/draft-04/schema#",
	"draft6":       "http://json-schema.org/draft-06/schema#",
	"draft7":       "http://json-schema.org/draft-07/schema#",
	"draft2019-09": "https://json-schema.org/draft/2019-09/schema",
	"draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}

// dialect writes $schema into a schema of the older drafts, whose groups leave
// it to the folder they are in.
func dialect(t *testing.T, raw json.RawMessage, draft string) json.RawMessage {
	t.Helper()
	if raw[0] != '{' {
		return raw
	}
	if _, ok := jsonrpc.Get(raw, "$schema"); ok {
		return raw
	}
	out, err := jsonrpc.Set(raw, "$schema", jsonrpc.Quote(dialects[draft]))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestSuite(t *testing.T) {
	suite := corpus.Open(t, "JSON-Schema-Test-Suite")
	used := map[string]bool{}
	for draft := range dialects {
		t.Run(draft, func(t *testing.T) {
			files, err := fs.Glob(suite, "tests/"+draft+"/*.json")
			if err != nil || len(files) == 0 {
				t.Fatalf("no files (%v)", err)
			}
			passed := 0
			for _, file := range files {
				passed += runFile(t, suite, draft, file, used)
			}
			t.Logf("%d cases passed", passed)
		})
	}
	for name := range excluded {
		if !used[name] {
			t.Errorf("%s is excluded but passes or is not there: drop the exclusion", name)
		}
	}
}

// runFile runs the groups of one file and counts the cases that hold.
func runFile(t *testing.T, suite fs.FS, draft, file string, used map[string]bool) (passed int) {
	t.Helper()
	raw, err := fs.ReadFile(suite, file)
	if err != nil {
		t.Fatal(err)
	}
	var groups []group
	if err := json.Unmarshal(raw, &groups); err != nil || len(groups) == 0 {
		t.Fatalf("%s: %d groups, %v", file, len(groups), err)
	}
	for _, g := range groups {
		name := strings.Join([]string{draft, path.Base(file), g.Description}, "/")
		why, n := runGroup(t, draft, g)
		reason, out := excluded[name]
		if !out {
			name = path.Join(draft, path.Base(file), "*")
			reason, out = excluded[name]
		}
		used[name] = used[name] || len(why) > 0
		switch {
		case out && len(why) > 0 && !strings.Contains(why[0], reason):
			t.Errorf("%s is excluded for another reason: %s", name, why[0])
		case !out && len(why) > 0:
			name = g.Description
			t.Errorf("%s/%s: %s", path.Base(file), name, strings.Join(slices.Compact(why), "; "))
		}
		passed += n
	}
	return passed
}

// runGroup gives what does not hold.
func runGroup(t *testing.T, draft string, g group) (why []string, passed int) {
	t.Helper()
	s, err := schema.Compile(dialect(t, g.Schema, draft))
	if err != nil {
		return []string{err.Error()}, 0
	}
	for _, c := range g.Tests {
		faults, err := s.Validate(c.Data)
		if err == nil {
			agree(t, s, string(g.Schema), string(c.Data))
		}
		switch {
		case err != nil:
			why = append(why, c.Description+": "+err.Error())
		case (len(faults) == 0) != c.Valid:
			why = append(why, c.Description+": judged wrongly")
		default:
			passed++
		}
	}
	return why, passed
}
