package index_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

// TestMinutes holds that each call of the last day that has ended counts once, in the minute in which it
// began: after the index was closed, made again, and for all replicas.
func TestMinutes(t *testing.T) {
	w := newWorld(t)
	l := w.chain(audit.Options{Instance: "mine"})
	x, stop := w.begin()
	record := func(w *world, l *audit.Log, at time.Time, effect string, outcome audit.Outcome) {
		w.call(l, func(r *audit.Record) { r.Time, r.Policy.Effect, r.Outcome = at, effect, outcome })
	}
	record(w, l, epoch.Add(-15*time.Hour), "allow", audit.Allowed) // 25 hours ago
	for at, effect := range map[time.Duration]string{0: "allow", 59 * time.Second: "allow", time.Minute: "hold", 61 * time.Second: "deny", 62 * time.Second: ""} {
		outcome := map[string]audit.Outcome{"allow": audit.Failed, "hold": audit.Held}[effect]
		if outcome == "" {
			outcome = audit.Denied
		}
		record(w, l, epoch.Add(at), effect, outcome)
	}
	running := audit.Record{DecisionID: "dec_running", Time: epoch.Add(time.Second), Policy: audit.Policy{Effect: "allow"}}
	write(t, l, audit.KindDecision, &running)
	w.caughtUp(x)
	want := []index.Minute{{epoch, "allow", 2}, {epoch.Add(time.Minute), "", 1}, {epoch.Add(time.Minute), "deny", 1}, {epoch.Add(time.Minute), "hold", 1}}
	check := func(when string) {
		t.Helper()
		w.caughtUp(x)
		for since, want := range map[time.Duration][]index.Minute{-24 * time.Hour: want, time.Second: want[1:], 2 * time.Minute: {}} {
			if got, err := x.Minutes(t.Context(), epoch.Add(since)); err != nil || !cmp.Equal(want, got) {
				t.Errorf("%s, since %v: %v (-want +got):\n%s", when, since, err, cmp.Diff(want, got))
			}
		}
	}
	check("while a call runs")
	running.Outcome = audit.Allowed
	write(t, l, audit.KindOutcome, &running)
	want[0].Calls++
	check("after its end")
	stop()
	x, stop = w.begin()
	check("after a restart")
	stop()
	o, closeDB, err := options(w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeDB()
	if _, err := index.New(o).Rebuild(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	x, _ = w.begin()
	check("after a rebuild")
	if !postgres.Used() {
		return
	}
	other := &world{t: t, dir: t.TempDir(), n: 100}
	theirs := other.chain(audit.Options{Instance: "theirs"})
	record(other, theirs, epoch, "allow", audit.Allowed)
	y, _ := w.begin(func(o *index.Options) { o.Trail, o.Owner, o.Lock = other.root(), "other", other.dir+"/lock" })
	other.caughtUp(y)
	want[0].Calls++
	check("with another replica")
}
