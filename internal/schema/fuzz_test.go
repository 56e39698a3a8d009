package schema_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/schema"
)

// FuzzSchema: nothing comes with an error, an error is of the kind promised,
// faults are few, and the same question has the same answer.
func FuzzSchema(f *testing.F) {
	f.Add([]byte(payment), []byte(paid))
	f.Add([]byte(`{"properties":{"c":{"$ref":"#"}},"unevaluatedProperties":false}`), []byte(`{"c":{"d":1}}`))
	f.Add([]byte(`{"$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}`), []byte(`[[1]]`))
	f.Add([]byte(`{"not":{"pattern":"^(?!a)"},"oneOf":[{"multipleOf":0.1},{"contains":{"const":1}}]}`), []byte(`"b"`))
	f.Add([]byte(`{"$schema":"http://json-schema.org/draft-04/schema#","dependencies":{"a":["b"]}}`), []byte(`{"a":1}`))
	f.Fuzz(func(t *testing.T, raw, instance []byte) {
		s, err := schema.Compile(raw)
		if err != nil {
			var r *schema.Refused
			if s != nil || !errors.As(err, &r) || r.Reason == "" {
				t.Fatalf("%v with %v", s, err)
			}
			return
		}
		faults, err := s.Validate(json.RawMessage(instance))
		if err == nil {
			agree(t, s, string(raw), strings.Trim(string(instance), " \t\r\n"))
		}
		if err != nil && faults != nil || len(faults) > 20 {
			t.Fatalf("%v with %v", faults, err)
		}
		for _, fault := range faults {
			if fault.Keyword == "" || fault.Want == "" || len(fault.Got) > 80 {
				t.Fatalf("poor fault %#v", fault)
			}
		}
		again, errAgain := s.Validate(json.RawMessage(instance))
		if (err == nil) != (errAgain == nil) || len(again) != len(faults) {
			t.Fatalf("%v, %v and then %v, %v", faults, err, again, errAgain)
		}
	})
}
