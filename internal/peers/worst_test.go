package peers_test

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
)

// worstQuarantine has the tools of testdata/worst.txtar that are quarantined, with
// the reason.
var worstQuarantine = map[string]string{
	"two-names":       "its definition has the keys \"name\" and \"Name\" at \"\"" + variants,
	"two-properties":  "its definition has the keys \"id\" and \"ID\" at \"/inputSchema/properties\"" + variants,
	"#20":             `reading its definition: duplicate key "description" at byte 40`, // a-key-twice
	"elsewhere":       "its inputSchema is refused: schema refused: it refers to https://elsewhere.example/a: references outside the schema are not followed",
	"unknown-dialect": "its inputSchema is refused: schema refused: it refers to https://elsewhere.example/schema: references outside the schema are not followed",
	"boolean-root":    "it has no inputSchema that is an object",
	"list-of-types":   `its inputSchema is for ["object"], and arguments are an object`,

	"no-input":    "it has no inputSchema that is an object",
	"huge-number": "reading its definition: number with an exponent beyond 400 at byte 32 (/default)",
	"loop":        "its inputSchema is refused: schema refused: # refers to itself without looking deeper into the value",
	"no-pattern":  "its inputSchema is refused: schema refused: not a valid schema: /properties/a/pattern: format: want a regex (error parsing regexp: missing closing ) in `(`), got string \"(\"",
}

const variants = ", which differ only in case\nhint: set case_variants to allow for this server if that is meant"

// worstResult has values that a typed model of a result would change, and line ends.
const worstResult = `{"zeta":1e2,"isError":false,"content":[
 {"type":"x-unknown","data":{"b":1,"a":9007199254740993}},
 {"x":[],"text":"\u0061 \/ <&> \ud83d\ude00","type":"text","annotations":{"priority":1.0,"x":{}}},
 {"type":"resource_link","uri":"x:y","name":"n","icons":[]},{"type":"image","data":"AA==","mimeType":"image/png","_meta":{}}],
 "resultType":"complete","_meta":{"vendor.example/x":[1E+2,-0]},
 "structuredContent":{"n":123456789012345678901234567890,"e":1e2,"m":[],"é":"e\u0301"}, "":null}`

// TestWorstDefinitions is TestRealDefinitions with definitions that are hard to pass
// on unchanged, over both transports, on one page and on several.
func TestWorstDefinitions(t *testing.T) {
	t.Parallel()
	parts.Long(t, "starts whole programs")
	archive, err := txtar.ParseFile("testdata/worst.txtar")
	if err != nil {
		t.Fatal(err)
	}
	offered := recorder.Config{Tools: []recorder.Tool{
		{Name: "answers", Result: json.RawMessage(worstResult)},
		// Invisible characters.
		{Name: "invisible", Definition: json.RawMessage(`{"name":"invisible","description":"` + "\u2028\u2029\u202e\ufeff\u00ad\u007f" + `","inputSchema":{"properties":{"e` + "\u0301" + `":{},"` + "\u200b" + `":{}}}}`)},
		// Other line ends, outside and inside of strings.
		{Name: "line-ends", Definition: json.RawMessage("{\r\n\"name\":\r\"line-ends\",\n\n\"inputSchema\":{\"description\":\"a\\r\\nb\"\r\n}\n}")},
	}}
	for _, f := range archive.Files {
		offered.Tools = append(offered.Tools, recorder.Tool{Name: f.Name, Definition: json.RawMessage(strings.TrimSpace(string(f.Data)))})
	}
	paged := offered
	paged.Page = 7
	child, remote := recorder.Stdio(t, paged), recorder.HTTP(t, offered)
	c := newComparison(t, []listedServer{
		{stdioOf("child", child, shared()), len(offered.Tools)},
		{httpOf("remote", remote, shared()), len(offered.Tools)},
	}, child)
	t.Run("lists", func(t *testing.T) {
		quarantine := map[string]string{}
		for name, reason := range worstQuarantine {
			quarantine["child "+name], quarantine["remote "+name] = reason, reason
		}
		c.compareLists(t, quarantine)
	})
	for _, name := range []string{"child", "remote"} {
		t.Run(name, func(t *testing.T) { c.compareResult(t, name, "answers", `{}`) })
	}
	c.stop(t)
}
