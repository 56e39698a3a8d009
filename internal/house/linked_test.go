package house_test

import (
	"regexp"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/program"
)

// TestNoTemplateIsLinked holds that nothing in toolgate executes a template at run time. A template
// calls methods by name: with one, the linker keeps every exported method of the whole program.
func TestNoTemplateIsLinked(t *testing.T) {
	names := command(t, "go", "tool", "nm", program.Built(module+"cmd/toolgate", program.Tags)(t))
	if !regexp.MustCompile(`(?m) T main\.main$`).MatchString(names) {
		t.Fatal("the program has no names")
	}
	for _, found := range regexp.MustCompile(`(?m)\S+/template\.\(\*Template\)\.Execute$`).FindAllString(names, -1) {
		t.Errorf("the program has %s: go build %s, and no text/template", found, program.Tags)
	}
}
