// Pages generates the Go code of the console's pages and of the texts that commands print:
// NAME_templ.go of each NAME.templ and NAME.qtpl.
//
//	go run ./internal/testkit/pages console     # or make -f .ci/Makefile pages
//
// The generators are the versions of templ and quicktemplate in go.mod. A test compares the committed
// files with them.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/a-h/templ/generator"
	"github.com/a-h/templ/parser/v2"
	texts "github.com/valyala/quicktemplate/parser"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run writes the code of every page in the directories.
func run(dirs []string) error {
	for _, dir := range dirs {
		sources, err := sourcesIn(dir)
		if err != nil {
			return err
		}
		for _, source := range sources {
			code, err := generate(source)
			if err != nil {
				return err
			}
			if err := os.WriteFile(generated(source), code, 0o644); err != nil { //nolint:gosec // source code is for everybody to read
				return err
			}
		}
	}
	return nil
}

// sourcesIn returns the paths of the pages and texts in a directory.
func sourcesIn(dir string) ([]string, error) {
	pages, err := filepath.Glob(filepath.Join(dir, "*.templ"))
	printed, failed := filepath.Glob(filepath.Join(dir, "*.qtpl"))
	return append(pages, printed...), errors.Join(err, failed)
}

// generated returns the path of the code of a page or a text.
func generated(source string) string {
	return strings.TrimSuffix(source, filepath.Ext(source)) + "_templ.go"
}

// developed finds the writing of constant text. templruntime.WriteString writes text from files in its
// place when the environment has TEMPL_DEV_MODE, which nobody shall do to a console.
var developed = regexp.MustCompile(`(templ_\w+_Err) = templruntime\.WriteString\((templ_\w+_Buffer), \d+, `)

// generate returns the code of a page or a text.
func generate(source string) ([]byte, error) {
	if filepath.Ext(source) == ".qtpl" {
		return generateText(source)
	}
	file, err := parser.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	var code bytes.Buffer
	if _, err := generator.Generate(file, &code, generator.WithFileName(filepath.Base(source))); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return format.Source(developed.ReplaceAll(code.Bytes(), []byte("_, $1 = $2.WriteString(")))
}

// generateText returns the code of a text, whose package has the name of its directory.
func generateText(source string) ([]byte, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	var code bytes.Buffer
	if err := texts.ParseNoLineComments(&code, bytes.NewReader(text), source, filepath.Base(filepath.Dir(source))); err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	return format.Source(code.Bytes())
}
