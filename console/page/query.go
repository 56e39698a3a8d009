package page

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
)

const bodyBytes = 64 << 10 // the largest request body

// ReadForm reads the fields of a form into r.PostForm.
func ReadForm(w http.ResponseWriter, r *http.Request) error {
	r.Body = http.MaxBytesReader(w, r.Body, bodyBytes)
	return ReadFields(r, "application/x-www-form-urlencoded", r.ParseForm, TooLarge)
}

// ReadFields reads a form of a media type with parse. It refuses a form that has a field twice.
func ReadFields(r *http.Request, media string, parse func() error, tooLarge Problem) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != media {
		return Problem{Status: http.StatusUnsupportedMediaType, Code: "NOT_A_FORM", Detail: "the body must be " + media}
	}
	if err := parse(); err != nil {
		if _, long := errors.AsType[*http.MaxBytesError](err); long {
			return tooLarge
		}
		return BadRequest("the form cannot be read", "")
	}
	for name, values := range r.PostForm {
		if len(values) > 1 {
			return BadRequest("a field is given twice: "+Visible(name), "")
		}
	}
	return nil
}

// ReadBody decodes the body of a decision: one JSON object without duplicate and
// unknown members. An empty body leaves into unchanged.
func ReadBody(w http.ResponseWriter, r *http.Request, into any, shape, example string) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return Problem{Status: http.StatusUnsupportedMediaType, Code: "NOT_JSON", Detail: "the body must be application/json"}
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytes))
	if _, long := errors.AsType[*http.MaxBytesError](err); long {
		return TooLarge
	}
	if err != nil {
		return BadRequest("the body could not be read", "")
	}
	if len(text) == 0 {
		return nil
	}
	if err := jsonv2.Unmarshal(text, into, jsonv2.RejectUnknownMembers(true)); err != nil {
		return BadRequest("the body is not "+shape, example)
	}
	return nil
}

// ReadQuery reads the parameters of a query, each with the function of its name. A
// parameter that is not known or given twice is refused: a filter that was silently
// ignored would show too much.
func ReadQuery(u *url.URL, known map[string]func(value string) error) error {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return BadRequest("the query cannot be read", "")
	}
	for name, values := range query {
		read := known[name]
		switch {
		case read == nil:
			return BadRequest(fmt.Sprintf("there is no parameter %q", Visible(name)), strings.Join(slices.Sorted(maps.Keys(known)), ", ")+" are known")
		case len(values) > 1:
			return BadRequest(fmt.Sprintf("%q is given twice", Visible(name)), "")
		}
		if err := read(values[0]); err != nil {
			return err
		}
	}
	return nil
}

// Number reads a number from least to most into n, and refuses others with detail.
func Number[N int | int64](n *N, least, most int64, detail string) func(string) error {
	return func(value string) error {
		read, err := strconv.ParseInt(value, 10, 64)
		if err != nil || read < least || read > most {
			return BadRequest(detail, "")
		}
		*n = N(read)
		return nil
	}
}

// Bool reads a truth value into b, and refuses others with detail.
func Bool(b *bool, detail string) func(string) error {
	return func(value string) (err error) {
		if *b, err = strconv.ParseBool(value); err != nil {
			return BadRequest(detail, "")
		}
		return nil
	}
}

// OneOf reads one of several names, or "", into s, and refuses others with detail.
func OneOf(s *string, names []string, detail string) func(string) error {
	return func(value string) error {
		if *s = value; value != "" && !slices.Contains(names, value) {
			return BadRequest(detail, "")
		}
		return nil
	}
}

// String reads any text into s.
func String(s *string) func(string) error {
	return func(value string) error {
		*s = value
		return nil
	}
}
