package schema

import (
	"regexp"
	"regexp/syntax"
	"sync"
	"time"

	"github.com/dlclark/regexp2"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

const (
	// maxPattern is the length of one pattern, in bytes; counted repeats make
	// a program up to a thousand times as long.
	maxPattern = 1 << 10
	// maxPatternBytes is the length of all patterns of a schema together.
	maxPatternBytes = 16 << 10
	// maxProgram is the size of one compiled pattern, in instructions.
	maxProgram = 20_000
	// maxMatch bounds one match on the linear engine, in instructions times
	// bytes: about a quarter of a second at worst.
	maxMatch = 20_000_000
	// matchTimeout bounds one match on the backtracking engine.
	matchTimeout = 5 * time.Millisecond
)

// quickClock makes the backtracking engine look at the clock often enough for
// matchTimeout; its default is 100 ms.
var quickClock = sync.OnceFunc(func() { regexp2.SetTimeoutCheckPeriod(time.Millisecond) })

// engine compiles the patterns of one schema. It is safe for concurrent use once it
// is sealed.
type engine struct {
	sealed bool // what comes now are values for `format: regex`
	known  map[string]jsonschema.Regexp
	bytes  int
	slow   bool // one of them backtracks
}

// compile gives one expression for a pattern; those of the schema are compiled
// once.
func (e *engine) compile(pattern string) (jsonschema.Regexp, error) {
	if re, ok := e.known[pattern]; ok {
		return re, nil
	}
	if len(pattern) > maxPattern {
		return nil, refused("a pattern has more than %d bytes", maxPattern)
	}
	if e.bytes+len(pattern) > maxPatternBytes {
		return nil, refused("the patterns have more than %d bytes", maxPatternBytes)
	}
	re, err := newPattern(pattern)
	if err != nil || e.sealed {
		return re, err
	}
	_, slow := re.(*backtracking)
	e.bytes, e.slow = e.bytes+len(pattern), e.slow || slow
	e.known[pattern] = re
	return re, nil
}

// newPattern tries the linear engine first, then the backtracking one.
func newPattern(pattern string) (jsonschema.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		quickClock()
		re, err := regexp2.Compile(pattern, regexp2.ECMAScript)
		if err != nil {
			return nil, err
		}
		re.MatchTimeout = matchTimeout
		return &backtracking{re}, nil
	}
	prog, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return nil, err
	}
	if len(prog.Inst) > maxProgram {
		return nil, refused("a pattern compiles to more than %d instructions", maxProgram)
	}
	compiled, err := regexp.Compile(pattern)
	return &linear{compiled, len(prog.Inst)}, err
}

// slowMatch is the panic that ends a validation whose pattern took too long.
// A match that merely failed would turn into a pass below `not`, so the whole
// instance is at fault instead, wherever the pattern stands.
type slowMatch struct{ pattern string }

func (m slowMatch) fault() Fault {
	return Fault{Keyword: "pattern", Want: "a match of " + clip(m.pattern, maxText), Got: "a match that took too long"}
}

// linear matches in time proportional to program and text.
type linear struct {
	*regexp.Regexp
	size int // instructions
}

// MatchString panics with slowMatch when the text is too long for the pattern.
func (l *linear) MatchString(s string) bool {
	if len(s) > maxMatch/l.size {
		panic(slowMatch{l.String()})
	}
	return l.Regexp.MatchString(s)
}

// backtracking may take time without bound and is therefore timed.
type backtracking struct{ *regexp2.Regexp }

// MatchString panics with slowMatch when the time is over.
func (b *backtracking) MatchString(s string) bool {
	ok, err := b.Regexp.MatchString(s)
	if err != nil {
		panic(slowMatch{b.String()})
	}
	return ok
}

// effort weighs a pattern for the estimate of a validation.
func effort(re jsonschema.Regexp) float64 {
	switch re := re.(type) {
	case *linear:
		return 1 + float64(re.size)/32
	case *backtracking:
		return 250
	}
	return 1
}
