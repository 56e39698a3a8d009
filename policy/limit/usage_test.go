package limit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"pgregory.net/rapid"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// noon is on the edge of a slice of every meter here.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// spending is what a wallet would be metered by.
var spending = []policy.Meter{
	{Name: "day", Window: 24 * time.Hour, Sum: "/amount", Per: []string{"/asset"}, Where: map[string][]json.RawMessage{
		"/action": {json.RawMessage(`"transfer"`)}}},
	{Name: "hour", Window: time.Hour},
}

// counter is a Usage on a store of its own with a clock that the test moves.
type counter struct {
	*limit.Usage
	t    testing.TB
	db   *store.DB
	path string
	now  time.Time
}

// All tests of the package, with a server.
func TestOnPostgreSQL(t *testing.T) { postgres.Again(t) }

func newCounter(t testing.TB) *counter {
	t.Helper()
	c := &counter{t: t, now: noon, path: filepath.Join(t.TempDir(), "state.db")}
	c.db = openStore(t, c.path)
	c.Usage = limit.NewUsage(c.db, func() time.Time { return c.now })
	return c
}

// A value that is as deep as the settings allow is counted like any other.
func TestMeterOfADeepValue(t *testing.T) {
	meters := []policy.Meter{{Name: "m", Window: time.Hour, Per: []string{"/to"}}}
	deep := strings.Repeat("[", 900) + strings.Repeat("]", 900)
	c := newCounter(t)
	if got, same := c.line(measure(t, who("ann"), `{"to":`+deep+`}`, meters)), c.line(measure(t, who("ann"), `{"to": `+deep+`}`, meters)); got != same {
		t.Errorf("%s, spelled otherwise %s", got, same)
	}
}

func openStore(t testing.TB, path string) *store.DB {
	t.Helper()
	db, err := postgres.State(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func measure(t testing.TB, p policy.Principal, arguments string, meters []policy.Meter) *limit.Use {
	t.Helper()
	use, err := limit.Measure(p, "wallet", "sha256:"+arguments, json.RawMessage(arguments), meters)
	if err != nil {
		t.Fatal(err)
	}
	return use
}

// reads gives what the meters of a call by ann stand at, as one line.
func (c *counter) reads(arguments string) string {
	c.t.Helper()
	return c.line(measure(c.t, who("ann"), arguments, spending))
}

func (c *counter) line(use *limit.Use) string {
	c.t.Helper()
	got, err := c.Read(c.t.Context(), use)
	if err != nil {
		c.t.Fatal(err)
	}
	text, err := json.Marshal(got)
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.NewReplacer(`"calls":`, "", `"sum":`, "", `"`, "").Replace(string(text))
}

// wants compares with what a call stands at.
func (c *counter) wants(arguments, want string) {
	c.t.Helper()
	if got := c.reads(arguments); got != want {
		c.t.Errorf("%s stands at %s, want %s", arguments, got, want)
	}
}

// takes counts a call by what it was judged by.
func (c *counter) takes(use *limit.Use) *limit.Reservation {
	c.t.Helper()
	judged, err := c.Read(c.t.Context(), use)
	if err != nil {
		c.t.Fatal(err)
	}
	r, err := c.Reserve(c.t.Context(), use, judged, func(map[string]policy.Reading) bool {
		c.t.Errorf("judged again, though nothing has changed")
		return false
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *counter) spends(arguments string) *limit.Reservation {
	c.t.Helper()
	return c.takes(measure(c.t, who("ann"), arguments, spending))
}

const hundred = `{"action":"transfer","asset":"USD","amount":100}`

func TestUsageCounts(t *testing.T) {
	c := newCounter(t)
	c.wants(hundred, "{day:{0,0},hour:{0,0}}")
	c.spends(hundred)
	c.spends(`{"action":"transfer","asset":"USD","amount":0.1}`)
	c.spends(`{"action":"transfer","asset":"USD","amount":2e-1}`)
	c.spends(`{"action":"transfer","asset":"EUR","amount":1000000000000000000000000000001}`)
	c.spends(`{"action":"balance"}`)
	c.wants(hundred, "{day:{3,100.3},hour:{5,0}}")
	c.wants(`{"action":"transfer","asset":"EUR","amount":1}`, "{day:{1,1000000000000000000000000000001},hour:{5,0}}")
	c.wants(`{"action":"transfer","amount":1}`, "{day:{0,0},hour:{5,0}}")
	c.wants(`{"action":"balance"}`, "{day:{0,0},hour:{5,0}}")
	for _, other := range []policy.Principal{who("bob"), {Subject: "ann", Tenant: "acme"}} {
		if got := c.line(measure(t, other, hundred, spending)); got != "{day:{0,0},hour:{0,0}}" {
			t.Errorf("%v stands at %s", other, got)
		}
	}
	elsewhere, err := limit.Measure(who("ann"), "other__wallet", "d", json.RawMessage(hundred), spending)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.line(elsewhere); got != "{day:{0,0},hour:{0,0}}" {
		t.Errorf("a tool of another name stands at %s", got)
	}
	if measure(t, who("ann"), `{"action":"balance","amount":"x"}`, spending).Fault() != nil {
		t.Error("a call that a meter does not count has to be countable")
	}
}

// Values that are one are counted together, however they are spelled, and a call
// counts where one of the values stands.
func TestUsageOfOneValue(t *testing.T) {
	meters := []policy.Meter{{Name: "m", Window: time.Hour, Per: []string{"/to/0", "/a~1b"}, Where: map[string][]json.RawMessage{
		"/n": {json.RawMessage(`1.0`), json.RawMessage(`{"b":[2,null],"a":1}`)}}}}
	c := newCounter(t)
	for _, one := range []struct {
		arguments string
		want      int
	}{
		{`{"n":1,"to":["x","y"],"a/b":{"k":10,"l":true}}`, 0},
		{`{"n":10e-1,"to":["\u0078"],"a/b":{"l":true,"k":1e1}}`, 1},
		{`{"n":{"a":1e0,"b":[2.0,null]},"to":["x"],"a/b":{"l":true,"k":10}}`, 2},
		{`{"n":1,"to":["y"],"a/b":{"l":true,"k":10}}`, 0}, // another value
		{`{"n":1,"to":{"0":"x"},"a/b":{"l":true,"k":10}}`, 3},
		{`{"n":1,"to":"x","a/b":{"l":true,"k":10}}`, 0}, // no value
		{`{"n":1,"to":null,"a/b":{"l":true,"k":10}}`, 1},
		{`{"n":1,"to":[null],"a/b":{"l":true,"k":10}}`, 2},
		{`{"n":1,"to":["` + strings.Repeat("x", 600) + `"],"a/b":0}`, 0},
		{`{"n":1,"to":["` + strings.Repeat("x", 600) + `"],"a/b":-0.0}`, 1},
		{`{"n":1,"to":["` + strings.Repeat("x", 601) + `"],"a/b":0}`, 0},
		{`{"n":"1","to":["x"],"a/b":{"k":10,"l":true}}`, 0}, // does not count
		{`{"to":["x"],"a/b":{"k":10,"l":true}}`, 0},
		{`{"n":1,"to":["x"],"a/b":{"k":10,"l":true}}`, 4},
	} {
		use := measure(t, who("ann"), one.arguments, meters)
		if got := c.line(use); got != fmt.Sprintf("{m:{%d,0}}", one.want) {
			t.Errorf("%.80s stands at %s, want %d", one.arguments, got, one.want)
		}
		c.takes(use)
	}
}

// Only a number as RFC 6901 writes it names an element of a list.
func TestUsageOfAnElement(t *testing.T) {
	for key, same := range map[string]string{"0": `["y"]`, "1": `[0,"x"]`, "2": `[]`, "01": `[]`, "+1": `[]`, "-1": `[]`, "x": `[]`, "99999999999999999999": `[]`} {
		meters := []policy.Meter{{Name: "m", Window: time.Hour, Per: []string{"/to/" + key}}}
		c := newCounter(t)
		c.takes(measure(t, who("ann"), `{"to":["y","x"]}`, meters))
		if got := c.line(measure(t, who("ann"), `{"to":`+same+`}`, meters)); got != "{m:{1,0}}" {
			t.Errorf("/to/%s is not the one of %s: %s", key, same, got)
		}
	}
}

// What a meter adds up is an exact number that fits; all else cannot be counted.
func TestUsageCountsNumbersOnly(t *testing.T) {
	c := newCounter(t)
	huge, tiny := "1"+strings.Repeat("0", 63), "0."+strings.Repeat("0", 31)+"1"
	for amount, ok := range map[string]bool{
		"0": true, "-0": true, "1e2": true, "100.00": true, huge: true, "1e63": true, tiny: true, "1e-32": true,
		huge + "0": false, "1e99999999999999999999": false, "1e-99999999999999999999": false, "1e64": false, "1e-33": false, "1e400": false, "-1": false, "-1e-9": false, `"100"`: false, "null": false, "true": false, "[100]": false, `{"v":1}`: false,
		strings.Repeat("9", 65): false, "0." + strings.Repeat("9", 33): false, strings.Repeat("1", 400): false,
	} {
		use := measure(t, who("ann"), `{"action":"transfer","asset":"USD","amount":`+amount+`}`, spending)
		if (use.Fault() == nil) != ok {
			t.Errorf("%.80s: %v", amount, use.Fault())
		}
		if ok {
			continue
		}
		var fault *limit.Uncountable
		if _, err := c.Reserve(t.Context(), use, nil, nil); !errors.As(err, &fault) || fault.Meter != "day" || fault.Pointer != "/amount" {
			t.Errorf("%.80s was counted: %v", amount, err)
		} else if amount[0] == '"' && fault.Got != "text" || amount[0] == '[' && fault.Got != "a list" {
			t.Errorf("%s is called %s", amount, fault.Got)
		}
	}
	missing := measure(t, who("ann"), `{"action":"transfer"}`, spending)
	if f := missing.Fault(); f == nil || !strings.Contains(f.Error(), "nothing is there") {
		t.Errorf("no amount: %v", f)
	}
	c.spends(`{"action":"transfer","asset":"USD","amount":` + huge + `}`)
	c.spends(`{"action":"transfer","asset":"USD","amount":` + tiny + `}`)
	c.wants(hundred, "{day:{2,"+huge+tiny[1:]+"},hour:{2,0}}")
}

// A call counts for as long as the window, and at most a sixtieth of it longer.
func TestUsageSlides(t *testing.T) {
	c := newCounter(t)
	c.now = noon.Add(10 * time.Second)
	c.spends(hundred)
	for _, step := range []struct {
		after      time.Duration
		hour, day_ string
	}{
		{time.Hour, "{1,0}", "{1,100}"}, {time.Hour + 50*time.Second - 1, "{1,0}", "{1,100}"}, {time.Hour + 50*time.Second, "{0,0}", "{1,100}"},
		{24 * time.Hour, "{0,0}", "{1,100}"}, {24*time.Hour + 24*time.Minute, "{0,0}", "{0,0}"},
	} {
		c.now = noon.Add(10*time.Second + step.after)
		c.wants(hundred, "{day:"+step.day_+",hour:"+step.hour+"}")
	}
	c.now = noon.Add(-time.Hour) // a clock that steps back forgets nothing
	c.wants(hundred, "{day:{1,100},hour:{1,0}}")
}

// A window that is made longer looks back as far as the shorter one has kept, one
// that is made shorter no further than it says.
func TestUsageOfAnotherWindow(t *testing.T) {
	c := newCounter(t)
	meter := func(w time.Duration) []policy.Meter { return []policy.Meter{{Name: "m", Window: w}} }
	c.takes(measure(t, who("ann"), hundred, meter(time.Hour)))
	c.now = noon.Add(45 * time.Minute)
	c.takes(measure(t, who("ann"), hundred, meter(time.Hour)))
	for w, want := range map[time.Duration]string{time.Minute: "{m:{1,0}}", time.Hour: "{m:{2,0}}", 24 * time.Hour: "{m:{2,0}}"} {
		if got := c.line(measure(t, who("ann"), hundred, meter(w))); got != want {
			t.Errorf("by a window of %v it stands at %s", w, got)
		}
	}
}

// A call that is judged by what no longer holds is judged again, and counted only if
// it passes then.
func TestReserveAgain(t *testing.T) {
	c := newCounter(t)
	use := measure(t, who("ann"), hundred, spending)
	stale, err := c.Read(t.Context(), use)
	if err != nil {
		t.Fatal(err)
	}
	c.spends(hundred)
	for _, passes := range []bool{false, true} {
		var asked []map[string]policy.Reading
		_, err := c.Reserve(t.Context(), use, stale, func(now map[string]policy.Reading) bool {
			asked = append(asked, now)
			return passes
		})
		if passes != (err == nil) || !passes && !errors.Is(err, limit.ErrRefused) {
			t.Errorf("passes %v: %v", passes, err)
		}
		if len(asked) != 1 || asked[0]["day"] != (policy.Reading{Calls: 1, Sum: "100"}) {
			t.Errorf("it was judged by %v", asked)
		}
	}
	c.wants(hundred, "{day:{2,200},hour:{2,0}}")
	func() {
		defer func() { _ = recover() }()
		_, _ = c.Reserve(t.Context(), use, stale, func(map[string]policy.Reading) bool { panic("planted") })
	}()
	c.wants(hundred, "{day:{2,200},hour:{2,0}}")
	c.spends(hundred) // the store is free again
}

func TestReturn(t *testing.T) {
	c := newCounter(t)
	for range 3 {
		c.spends(hundred)
	}
	r := c.spends(`{"action":"transfer","asset":"USD","amount":0.5}`)
	c.now = noon.Add(30 * time.Minute) // it goes back to where it was
	c.spends(hundred)
	if err := c.Return(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.wants(hundred, "{day:{4,400},hour:{4,0}}")
	last := c.spends(`{"action":"transfer","asset":"EUR","amount":7}`)
	if err := c.Return(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	c.wants(`{"action":"transfer","asset":"EUR","amount":7}`, "{day:{0,0},hour:{4,0}}")
	if rows := c.rows(); rows != 4 { // day and hour, in two slices each
		t.Errorf("%d rows, want none without calls", rows)
	}
	late := c.spends(hundred)
	c.now = noon.Add(100 * time.Hour)
	c.spends(hundred) // what is over has been swept
	if err := c.Return(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	c.wants(hundred, "{day:{1,100},hour:{1,0}}")
}

func (c *counter) rows() (n int) {
	c.t.Helper()
	if err := c.db.Read.QueryRowContext(c.t.Context(), "SELECT count(*) FROM usage").Scan(&n); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// What nothing counts any more goes away with later calls, some at a time.
func TestUsageIsSwept(t *testing.T) {
	c := newCounter(t)
	minute := []policy.Meter{{Name: "m", Window: time.Minute, Per: []string{"/n"}}}
	for n := range 300 {
		c.takes(measure(t, who("ann"), fmt.Sprintf(`{"n":%d}`, n), minute))
	}
	c.now = noon.Add(time.Hour)
	for _, want := range []int{300 - 256 + 1, 1} {
		c.takes(measure(t, who("bob"), `{"n":0}`, minute))
		if got := c.rows(); got != want {
			t.Errorf("%d rows are left, want %d", got, want)
		}
	}
}

// The run of a ticket does not stand against the identical call, which asks for its
// answer; against every other call it does, and against the identical one when it
// comes as a new call.
func TestOwnRun(t *testing.T) {
	c := newCounter(t)
	expires := noon.Add(15 * time.Minute)
	run := func(ticket string) *limit.Use {
		use := measure(t, who("ann"), hundred, spending)
		use.For(ticket, expires)
		return use
	}
	c.takes(run("apr_1"))
	c.wants(hundred, "{day:{0,0},hour:{0,0}}")
	c.wants(`{"action":"transfer","asset":"USD","amount":101}`, "{day:{1,100},hour:{1,0}}")
	use := measure(t, who("ann"), hundred, spending)
	judged, err := c.Read(t.Context(), use)
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Reserve(t.Context(), use, judged, func(now map[string]policy.Reading) bool {
		return now["day"].Sum != "100"
	})
	if !errors.Is(err, limit.ErrRefused) {
		t.Errorf("the identical call as a new one: %v", err)
	}
	c.takes(run("apr_1")) // what is left of an earlier try of this ticket does not stand against it
	c.wants(`{"action":"balance"}`, "{day:{0,0},hour:{1,0}}")
	r := c.takes(run("apr_1"))
	if err := c.Return(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	c.wants(`{"action":"balance"}`, "{day:{0,0},hour:{0,0}}")
	c.takes(run("apr_2"))
	c.now = expires
	c.wants(hundred, "{day:{1,100},hour:{1,0}}")
}

// A store that fails refuses.
func TestUsageFailsClosed(t *testing.T) {
	c := newCounter(t)
	r := c.spends(hundred)
	use := measure(t, who("ann"), hundred, spending)
	if _, err := c.db.Write.ExecContext(t.Context(), "UPDATE usage SET sum = 'many'"); err != nil {
		t.Fatal(err)
	}
	fails := func(what string) {
		t.Helper()
		if got, err := c.Read(t.Context(), use); err == nil {
			t.Errorf("%s: it stands at %v", what, got)
		}
		if _, err := c.Reserve(t.Context(), use, nil, func(map[string]policy.Reading) bool { return true }); err == nil {
			t.Errorf("%s: the call was counted", what)
		}
		if err := c.Return(t.Context(), r); err == nil {
			t.Errorf("%s: the call was taken back", what)
		}
	}
	fails("a sum that is none")
	if err := c.db.Close(); err != nil {
		t.Fatal(err)
	}
	fails("a closed store")
	for _, raw := range []string{`{"action":"transfer","asset":{"a":1,"a":2},"amount":1}`, `{"action":"transfer","asset":[1,],"amount":1}`} {
		if use, err := limit.Measure(who("ann"), "wallet", "d", json.RawMessage(raw), spending); err == nil && use.Fault() == nil {
			t.Errorf("%s was measured", raw)
		}
	}
}

// Many callers at once never pass the window, and waste nothing of it.
func TestUsageTogether(t *testing.T) {
	c := newCounter(t)
	var mu sync.Mutex
	passed := 0
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() {
			if err := spendUpTo(t.Context(), c.Usage, 1000); err == nil {
				mu.Lock()
				passed++
				mu.Unlock()
			} else if !errors.Is(err, limit.ErrRefused) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if passed != 10 {
		t.Errorf("%d calls of 100 passed a window of 1000", passed)
	}
	c.wants(hundred, "{day:{10,1000},hour:{10,0}}")
}

// event is a call that a model remembers.
type event struct {
	at     time.Time
	asset  string
	amount *big.Rat
	r      *limit.Reservation
}

// Whatever is counted and returned when, a meter stands no lower than the calls of
// its window, and no higher than those of a window a sixtieth longer.
func TestUsageModel(t *testing.T) {
	c, n := newCounter(t), 0
	rapid.Check(t, func(rt *rapid.T) {
		n++ // each history is somebody else's
		ann := who(fmt.Sprint("ann-", n))
		c.now = noon
		meters := []policy.Meter{{Name: "m", Window: time.Minute, Sum: "/amount", Per: []string{"/asset"}}}
		var events []event
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			c.now = c.now.Add(time.Duration(rapid.IntRange(0, int(20*time.Second)).Draw(rt, "pause")))
			if n := rapid.IntRange(-1, len(events)-1).Draw(rt, "return"); n >= 0 && rapid.Bool().Draw(rt, "returns") {
				if err := c.Return(t.Context(), events[n].r); err != nil {
					rt.Fatal(err)
				}
				events = append(events[:n], events[n+1:]...)
			} else {
				e := event{at: c.now, asset: rapid.SampledFrom([]string{"USD", "EUR"}).Draw(rt, "asset")}
				text := rapid.StringMatching(`(0|[1-9][0-9]{0,30})(\.[0-9]{1,18})?`).Draw(rt, "amount")
				e.amount, _ = new(big.Rat).SetString(text)
				e.r = c.takes(measure(t, ann, fmt.Sprintf(`{"asset":%q,"amount":%s}`, e.asset, text), meters))
				events = append(events, e)
			}
			for _, asset := range []string{"USD", "EUR"} {
				got, err := c.Read(t.Context(), measure(t, ann, fmt.Sprintf(`{"asset":%q,"amount":1}`, asset), meters))
				if err != nil {
					rt.Fatal(err)
				}
				sum, ok := new(big.Rat).SetString(string(got["m"].Sum))
				least, most, from, to := int64(0), int64(0), new(big.Rat), new(big.Rat)
				for _, e := range events {
					if e.asset == asset && e.at.After(c.now.Add(-time.Minute)) {
						least++
						from.Add(from, e.amount)
					}
					if e.asset == asset && e.at.After(c.now.Add(-61*time.Second)) {
						most++
						to.Add(to, e.amount)
					}
				}
				if !ok || got["m"].Calls < least || got["m"].Calls > most || sum.Cmp(from) < 0 || sum.Cmp(to) > 0 {
					rt.Fatalf("%s stands at %+v, want %d to %d calls, %v to %v", asset, got["m"], least, most, from, to)
				}
			}
		}
	})
}

// A meter of facts counts those, apart from one of the same name that counted arguments.
func TestUsageOfFacts(t *testing.T) {
	c := newCounter(t)
	c.spends(hundred)
	meters := slices.Clone(spending[:1])
	meters[0].Sum, meters[0].Per = "amount", []string{"/asset"}
	meters[0].Facts = func(arguments []byte) jsontext.Value {
		return jsontext.Value(map[bool]string{true: `{"amount":10000}`, false: `{}`}[string(arguments) == hundred])
	}
	if got := c.line(measure(t, who("ann"), hundred, meters)); got != "{day:{0,0}}" {
		t.Errorf("before: %s", got)
	}
	c.takes(measure(t, who("ann"), hundred, meters))
	if got := c.line(measure(t, who("ann"), hundred, meters)); got != "{day:{1,10000}}" {
		t.Errorf("after: %s", got)
	}
	if fault := measure(t, who("ann"), `{"action":"transfer","asset":"USD","amount":7}`, meters).Fault(); fault == nil || fault.Pointer != "amount" {
		t.Errorf("an absent fact: %v", fault)
	}
	c.wants(hundred, "{day:{1,100},hour:{1,0}}")
}

// Whatever the arguments are, measuring ends, and what can be counted is counted
// and taken back to where it was.
func FuzzMeasure(f *testing.F) {
	for _, seed := range []string{hundred, `{}`, `{"amount":1e400}`, `{"action":"transfer","amount":-0,"asset":[{}]}`, `{"action":"transfer","amount":1,"asset":{"b":1,"a":1.50}}`, `[`, `null`, ``} {
		f.Add(seed, "/amount", "/asset")
	}
	c := newCounter(f)
	f.Fuzz(func(t *testing.T, arguments, sum, per string) {
		if sum == "" || per == "" {
			return
		}
		use, err := limit.Measure(who("ann"), "t", "d", json.RawMessage(arguments), []policy.Meter{{Name: "m", Window: time.Hour, Sum: sum, Per: []string{per}}})
		if err != nil || use.Fault() != nil {
			return
		}
		before, err := c.Read(t.Context(), use)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Reserve(t.Context(), use, before, func(map[string]policy.Reading) bool { return false })
		if err != nil {
			t.Fatal(err)
		}
		counted, err := c.Read(t.Context(), use)
		if err != nil || counted["m"].Calls != before["m"].Calls+1 || !json.Valid([]byte(counted["m"].Sum)) {
			t.Fatalf("%v after %v: %v", counted, before, err)
		}
		if err := c.Return(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		if after, err := c.Read(t.Context(), use); err != nil || after["m"] != before["m"] {
			t.Fatalf("%v after %v: %v", after, before, err)
		}
	})
}

func BenchmarkUsage(b *testing.B) {
	c := newCounter(b)
	for i := range 60 { // a window in which there was a call in every slice
		c.now = noon.Add(time.Duration(i) * time.Minute)
		c.takes(measure(b, who("ann"), hundred, spending))
	}
	use := measure(b, who("ann"), hundred, spending)
	b.Run("measure", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			measure(b, who("ann"), hundred, spending)
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Read(b.Context(), use); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("reserve", func(b *testing.B) {
		for b.Loop() {
			if _, err := c.Reserve(b.Context(), use, nil, func(map[string]policy.Reading) bool { return true }); err != nil {
				b.Fatal(err)
			}
		}
	})
}
