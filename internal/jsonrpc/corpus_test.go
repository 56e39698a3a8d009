package jsonrpc_test

import (
	"bytes"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/testkit/corpus"
)

// exceptions are the files that are good JSON and yet have two readings.
var exceptions = map[string]string{
	"y_object_duplicated_key.json":           "duplicate key",
	"y_object_duplicated_key_and_value.json": "duplicate key",
	"y_object_escaped_null_in_key.json":      "control character",
}

// flat is what the decoder makes of a value between other tokens.
func flat(value []byte) []byte {
	var out []byte
	inside := false
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case inside && c == '\\':
			out = append(out, c)
			i++
			c = value[i]
		case c == '"':
			inside = !inside
		case !inside && (c == '\n' || c == '\r'):
			c = ' '
		}
		out = append(out, c)
	}
	return bytes.Trim(out, " ")
}

func TestCorpus(t *testing.T) {
	suite := corpus.Open(t, "JSONTestSuite")
	files, err := fs.Glob(suite, "test_parsing/*.json")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[byte]int{}
	for _, file := range files {
		data, err := fs.ReadFile(suite, file)
		if err != nil {
			t.Fatal(err)
		}
		name := path.Base(file)
		counts[name[0]]++
		t.Run(name, func(t *testing.T) { corpusFile(t, name, data) })
	}
	for _, kind := range []byte("yni") {
		if counts[kind] == 0 {
			t.Errorf("the corpus has no %c_ files", kind)
		}
	}
	t.Logf("%d accept, %d refuse, %d either", counts['y'], counts['n'], counts['i'])
}

// corpusFile splices a file in as the arguments of a call and checks it bare.
func corpusFile(t *testing.T, name string, data []byte) {
	m, err := jsonrpc.Decode([]byte(with(string(data))), jsonrpc.Limits{})
	raw, _, errBare := jsonrpc.CheckValue(data, jsonrpc.Limits{})
	if (err == nil) != (errBare == nil) {
		t.Errorf("spliced: %v, bare: %v", err, errBare)
	}
	words, exception := exceptions[name]
	switch {
	case exception:
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("got %v, want %q", err, words)
		}
	case name[0] == 'y' && err != nil:
		t.Errorf("refused: %v", err)
	case name[0] == 'n' && err == nil:
		t.Error("accepted")
	case name[0] == 'i' && err == nil && strings.HasPrefix(name, "i_string"):
		t.Error("accepted a string that parsers read differently")
	case err == nil:
		got, _ := jsonrpc.Get(m.Params, "arguments")
		if want := flat(data); !bytes.Equal(got, want) || !bytes.Equal(raw, want) {
			t.Errorf("bytes changed: %q and %q, want %q", got, raw, want)
		}
	}
}
