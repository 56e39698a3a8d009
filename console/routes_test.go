package console_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/docs/schemas"
)

// TestRoutesAreInTheDocument and the reverse.
func TestRoutesAreInTheDocument(t *testing.T) {
	text, err := schemas.Files.ReadFile("openapi-admin.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	documented := map[string][]string{}
	for path, operations := range document.Paths {
		delete(operations, "parameters")
		delete(operations, "head") // as GET, without the body
		documented[path] = slices.Sorted(maps.Keys(operations))
	}
	routes := map[string][]string{}
	for path, methods := range whole(t).Routes() {
		if !strings.HasPrefix(path, "/v1/") {
			continue
		}
		for _, action := range []string{"approve", "deny"} { // one route serves both
			path := strings.Replace(path, "{action}", action, 1)
			routes[path] = nil
			for _, method := range methods {
				routes[path] = append(routes[path], strings.ToLower(method))
			}
		}
	}
	if diff := cmp.Diff(routes, documented); diff != "" {
		t.Errorf("routes (-console +document):\n%s", diff)
	}
}
