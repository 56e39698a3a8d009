package rest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/schema"
)

type object = map[string]any

// document is the OpenAPI document as a judge of answers. It knows the parts
// of OpenAPI 3.1 that the document uses and fails on what it does not know.
type document struct {
	root  object
	paths map[string]*regexp.Regexp // :: template ⇒ the paths that it stands for
	seen  map[string]bool           // :: "METHOD template status"
}

func readDocument(t *testing.T, text []byte) *document {
	t.Helper()
	d := &document{paths: map[string]*regexp.Regexp{}, seen: map[string]bool{}}
	if err := json.Unmarshal(text, &d.root); err != nil {
		t.Fatal(err)
	}
	for template := range d.root["paths"].(object) {
		pattern := regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(template), `[^/]+`)
		d.paths[template] = regexp.MustCompile("^" + pattern + "$")
	}
	return d
}

// methods are the operations of a path item, in capitals.
func (d *document) methods(template string) []string {
	var found []string
	for key := range d.root["paths"].(object)[template].(object) {
		if slices.Contains([]string{"get", "head", "post", "put", "patch", "delete", "options", "trace"}, key) {
			found = append(found, strings.ToUpper(key))
		}
	}
	slices.Sort(found)
	return found
}

// operations are "METHOD template" of the whole document.
func (d *document) operations() []string {
	var all []string
	for _, template := range slices.Sorted(maps.Keys(d.paths)) {
		for _, method := range d.methods(template) {
			all = append(all, method+" "+template)
		}
	}
	return all
}

func (d *document) operation(name string) object {
	method, template, _ := strings.Cut(name, " ")
	return d.root["paths"].(object)[template].(object)[strings.ToLower(method)].(object)
}

// resolve follows a reference inside the document.
func (d *document) resolve(v any) object {
	at := v.(object)
	ref, ok := at["$ref"].(string)
	if !ok {
		return at
	}
	found := any(d.root)
	for _, key := range strings.Split(strings.TrimPrefix(ref, "#/"), "/") {
		found = found.(object)[key]
	}
	return found.(object)
}

// compile makes a schema of the document stand alone.
func (d *document) compile(part any) (*schema.Schema, error) {
	text, err := json.Marshal(object{"allOf": []any{part}, "components": object{"schemas": d.root["components"].(object)["schemas"]}})
	if err != nil {
		return nil, err
	}
	return schema.Compile(text)
}

// fits holds a JSON text to a schema of the document.
func (d *document) fits(part any, text string) error {
	s, err := d.compile(part)
	if err != nil {
		return err
	}
	faults, err := s.Validate(json.RawMessage(text))
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("%v", faults)
	}
	return err
}

// check holds an answer to the document: its operation, status, headers, media
// type and body.
func (d *document) check(method, path string, got answer) error {
	path, _, _ = strings.Cut(path, "?")
	var name string
	for template, pattern := range d.paths {
		concrete := name == "" || strings.Contains(name, "{") // goes before one with parameters
		if concrete && pattern.MatchString(path) && slices.Contains(d.methods(template), method) {
			name = method + " " + template
		}
	}
	if name == "" {
		return fmt.Errorf("%s %s is no operation of the document", method, path)
	}
	raw, ok := d.operation(name)["responses"].(object)[fmt.Sprint(got.status)]
	if !ok {
		return fmt.Errorf("%s: status %d is not in the document: %s", name, got.status, got.body)
	}
	d.seen[fmt.Sprintf("%s %d", name, got.status)] = true
	response := d.resolve(raw)
	if err := d.headers(response, got); err != nil {
		return fmt.Errorf("%s: status %d: %w", name, got.status, err)
	}
	if err := d.content(response, got, method == "HEAD"); err != nil {
		return fmt.Errorf("%s: status %d: %w", name, got.status, err)
	}
	return nil
}

func (d *document) headers(response object, got answer) error {
	declared, _ := response["headers"].(object)
	for name, raw := range declared {
		header := raw.(object)
		value := got.head.Get(name)
		if value == "" {
			if header["required"] == true {
				return fmt.Errorf("header %s is missing", name)
			}
			continue
		}
		text, _ := json.Marshal(value)
		if header["schema"].(object)["type"] == "integer" {
			text = []byte(value)
		}
		if err := d.fits(header["schema"], string(text)); err != nil {
			return fmt.Errorf("header %s: %w", name, err)
		}
	}
	for _, name := range []string{"Retry-After", "WWW-Authenticate"} {
		if _, ok := declared[name]; !ok && got.head.Get(name) != "" {
			return fmt.Errorf("header %s is not in the document", name)
		}
	}
	return nil
}

func (d *document) content(response object, got answer, head bool) error {
	declared, _ := response["content"].(object)
	if declared == nil {
		if got.body != "" {
			return fmt.Errorf("there is a body: %s", got.body)
		}
		return nil
	}
	kind, _, err := mime.ParseMediaType(got.head.Get("Content-Type"))
	if err != nil {
		return fmt.Errorf("Content-Type %q: %w", got.head.Get("Content-Type"), err)
	}
	media, ok := declared[kind].(object)
	if !ok {
		if _, ok = declared["*/*"]; !ok {
			return fmt.Errorf("Content-Type %s is not in the document", kind)
		}
		return nil
	}
	if head || !strings.HasSuffix(kind, "json") {
		if head && got.body != "" {
			return fmt.Errorf("the answer to HEAD has a body: %s", got.body)
		}
		return nil
	}
	if err := d.fits(media["schema"], got.body); err != nil {
		return fmt.Errorf("%w: %s", err, got.body)
	}
	return nil
}

// unseen are the statuses of the document that no answer has had.
func (d *document) unseen() []string {
	var missing []string
	for _, name := range d.operations() {
		for status := range d.operation(name)["responses"].(object) {
			if key := name + " " + status; !d.seen[key] {
				missing = append(missing, key)
			}
		}
	}
	slices.Sort(missing)
	return missing
}
