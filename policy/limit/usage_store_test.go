package limit_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/filled"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/limit"
)

// A metered call costs the same however many slices there are: no statement of its path reads
// the whole table.
func TestOldUsageCostsACallNothing(t *testing.T) {
	c := newCounter(t)
	use := measure(t, who("ann"), `{"action":"transfer","amount":5,"asset":"USD"}`, spending)
	reserve := func() *limit.Reservation {
		t.Helper()
		judged, err := c.Read(t.Context(), use)
		if err != nil {
			t.Fatal(err)
		}
		r, err := c.Reserve(t.Context(), use, judged, func(map[string]policy.Reading) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	reserve()
	if err := filled.Usage(t.Context(), c.db, "ann", 10_000); err != nil {
		t.Fatal(err)
	}
	statements := filled.Record(c.db)
	use.For("apr_1", noon.Add(time.Minute))
	if err := c.Return(t.Context(), reserve()); err != nil {
		t.Fatal(err)
	}
	for _, scan := range statements.Scans(t) {
		t.Errorf("this reads a whole table:\n%s", scan)
	}
}

// A caller that is frozen while it counts stops nobody but the callers of its meter, and them
// until the server has ended its transaction. It has counted nothing then.
func TestAFrozenCallerStopsNobody(t *testing.T) {
	c := newCounter(t)
	frozen := limit.NewUsage(openStore(t, c.path), func() time.Time { return noon })
	use := func(subject string) *limit.Use {
		return measure(t, who(subject), `{"action":"transfer","amount":5,"asset":"USD"}`, spending)
	}
	counted := func(subject string) {
		t.Helper()
		if _, err := c.Reserve(t.Context(), use(subject), nil, func(map[string]policy.Reading) bool { return true }); err != nil {
			t.Error(err)
		}
	}
	var waiting sync.WaitGroup
	_, err := frozen.Reserve(t.Context(), use("ann"), nil, func(map[string]policy.Reading) bool { // its transaction is open
		if postgres.Used() {
			counted("bob")
			counted("ann")
		} else { // the lock is that of the whole file
			waiting.Go(func() { counted("bob") })
		}
		return true
	})
	waiting.Wait()
	if (err != nil) != postgres.Used() || errors.Is(err, limit.ErrRefused) {
		t.Errorf("the frozen caller: %v", err)
	}
	now, err := c.Read(t.Context(), use("ann"))
	if err != nil || now["hour"].Calls != 1 {
		t.Errorf("%d calls are counted, %v; want 1", now["hour"].Calls, err)
	}
}
