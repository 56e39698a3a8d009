package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/filled"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/internal/testkit/redis"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/policy/limit"
)

// costs are what single operations take, in seconds, unless they say otherwise.
type costs struct {
	call      float64 // CPU of a replica for a call, from docs/evidence/performance.md
	change    float64 // one change of a ticket: a transaction, taken for CPU of the database
	flush     float64 // of the database's log for a commit, from docs/evidence/performance.md; the test server does not flush. Commits that notify follow one another
	statement float64 // one small read of the database
	script    float64 // of the server of limits, for a call that asks it
	session   float64 // bytes of memory, from docs/evidence/performance.md
}

// plan is an installation and its load.
type plan struct {
	replicas, cores, databaseCores int
	calls                          float64 // of all replicas a second
	held                           float64 // share of the calls that people approve
	waits                          float64 // seconds for which a held call waits at its replica
	asks                           float64 // share of the calls that ask the server of limits
	everyCall                      float64 // seconds between two calls of a session at replicas that do not have it; 0 = all have theirs
	inTurn                         bool    // a session's calls go to all replicas in turn
}

// lookUps returns the share of the calls that ask who has their session.
func (p plan) lookUps() float64 {
	between := p.everyCall
	if p.inTurn {
		between *= float64(p.replicas)
	}
	if between == 0 {
		return 0
	}
	return 1 / (1 + sessionKept/between)
}

// Facts of the code.
const (
	changesPerHeld = 4      // proposed, approved, dispatching, done
	looksPerHeld   = 2      // of a call that waits: the first, and when its decision wakes it; each is a statement (approval.Tickets.Wait)
	looksPerSecond = 4      // of a call that waits and is not woken
	readers        = 4      // connections of a replica that read
	connections    = 11     // of a replica in all
	idleReads      = 4      // of an idle replica a second: revocations, tickets, lease, report
	idleChanges    = 1 / 5. // of an idle replica a second: the end of its chain
	sessionKept    = 5      // seconds for which a replica remembers who has a session
	busiest        = 0.7    // load of a queue from which on waits grow steeply
)

// reads returns the statements a second that look for decisions and changes.
func (p plan) reads() float64 {
	held := p.calls * p.held
	return held*(p.waits*looksPerSecond+looksPerHeld) + float64(p.replicas)*(idleReads+held*changesPerHeld)
}

// changes returns the transactions a second that write.
func (p plan) changes() float64 {
	return p.calls*p.held*changesPerHeld + float64(p.replicas)*idleChanges
}

// queues are the parts on which calls wait for each other, with their loads: 1 = all that
// they can do.
var queues = []struct {
	name string
	load func(p plan, c costs) float64
}{
	{"CPU of a replica", func(p plan, c costs) float64 { return p.calls * c.call / float64(p.replicas*p.cores) }},
	{"database: changes", func(p plan, c costs) float64 { return p.changes() * c.change / float64(p.databaseCores) }},
	{"database: commits", func(p plan, c costs) float64 { return p.changes() * c.flush }},
	{"readers of a replica", func(p plan, c costs) float64 { return p.reads() * c.statement / float64(p.replicas*readers) }},
	{"database: reads", func(p plan, c costs) float64 { return p.reads() * c.statement / float64(p.databaseCores) }},
	{"server of limits", func(p plan, c costs) float64 { return p.calls * (p.asks + p.lookUps()) * c.script }},
}

// bends returns the queue that is the first to be as busy as it should be at most, and at
// how many calls a second of all replicas.
func (p plan) bends(c costs) (first string, calls float64) {
	calls = math.Inf(1)
	for _, q := range queues {
		low, high := 0.0, 1e7
		for range 60 {
			if p.calls = (low + high) / 2; q.load(p, c) > busiest {
				high = p.calls
			} else {
				low = p.calls
			}
		}
		if low < calls {
			first, calls = q.name, low
		}
	}
	return first, calls
}

// TestCapacity measures single operations, and prints what a model of many replicas
// makes of them: for installations that do not fit this machine. It runs only with
// TOOLGATE_MEASURE set.
func TestCapacity(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("prints a model of many replicas (TOOLGATE_MEASURE=1)")
	}
	c := costs{call: 65.3e-6, flush: 150e-6, session: 34e3}
	c.change, c.statement, c.script = changeCost(t)/changesPerHeld, statementCost(t), scriptCost(t)
	fmt.Printf("measured here: a change %.0f µs, a statement %.0f µs, a script %.1f µs\n", c.change*1e6, c.statement*1e6, c.script*1e6)
	fmt.Printf("from docs/evidence/performance.md: a call %.1f µs, a flush %.0f µs, a session %.0f KB\n\n", c.call*1e6, c.flush*1e6, c.session/1e3)
	loads := []struct {
		what string
		plan plan
	}{
		{"nothing held, leases of many tokens", plan{}},
		{"nothing held, each call asks for its token", plan{asks: 1}},
		{"each client keeps to one replica, a call every 10 s", plan{everyCall: 10}},
		{"each client keeps to one replica, 1 call/s", plan{everyCall: 1}},
		{"each client keeps to one replica, 10 calls/s", plan{everyCall: 0.1}},
		{"calls go to all replicas in turn, 1 call/s of a client", plan{everyCall: 1, inTurn: true}},
		{"1 % held, decided at once", plan{held: 0.01}},
		{"0.1 % held, each waits 30 s", plan{held: 0.001, waits: 30}},
		{"1 % held, each waits 30 s", plan{held: 0.01, waits: 30}},
	}
	fmt.Println("| Load | 3 replicas | 10 replicas | 100 replicas |\n|---|--:|--:|--:|")
	for _, l := range loads {
		fmt.Printf("| %s |", l.what)
		for _, l.plan.replicas = range []int{3, 10, 100} {
			l.plan.cores, l.plan.databaseCores = 2, 8
			first, calls := l.plan.bends(c)
			fmt.Printf(" %.0f/s: %s |", calls, first)
		}
		fmt.Println()
	}
	fmt.Printf("\n| 100 replicas, 10,000 calls/s |")
	for _, q := range queues {
		fmt.Printf(" %s |", q.name)
	}
	fmt.Println("\n|---|--:|--:|--:|--:|--:|--:|")
	for _, l := range loads {
		fmt.Printf("| %s |", l.what)
		l.plan.replicas, l.plan.cores, l.plan.databaseCores, l.plan.calls = 100, 2, 8, 10_000
		for _, q := range queues {
			fmt.Printf(" %.2f |", q.load(l.plan, c))
		}
		fmt.Println()
	}
	fmt.Printf("\n100 replicas: %d connections of the database; of 1,000,000 sessions %.2f GB at each replica\n", 100*connections, 1e6*c.session/1e11)
}

// perRun returns the seconds that do takes on average, n times in a row.
func perRun(t *testing.T, n int, do func(i int) error) float64 {
	t.Helper()
	began := time.Now()
	for i := range n {
		if err := do(i); err != nil {
			t.Fatal(err)
		}
	}
	return time.Since(began).Seconds() / float64(n)
}

func openDatabase(t *testing.T, address string) *store.DB {
	t.Helper()
	open, migrations := store.Open, store.Migrations()
	if strings.HasPrefix(address, "postgres:") {
		open, migrations = store.OpenPostgres, store.PostgresMigrations()
	}
	db, err := open(t.Context(), address, migrations)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// openTickets opens the tickets of a process in a database.
func openTickets(t *testing.T, db *store.DB, secrets string) *approval.Tickets {
	t.Helper()
	dir, err := keys.Open(secrets)
	if err != nil {
		t.Fatal(err)
	}
	tickets, err := approval.New(t.Context(), db, approval.Options{Keys: dir, MaxLive: 1000})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tickets.Close() })
	return tickets
}

// heldCall is a call that one person decides on.
func heldCall(arguments string) approval.Held {
	return approval.Held{
		Principal: policy.Principal{Subject: "ann"}, Server: "up", Tool: "say", Exposed: "up__say", Fingerprint: "f", Revision: "r", Rule: "R",
		Arguments: json.RawMessage(arguments), Digest: fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(arguments))), Approval: policy.Approval{Roles: []string{"boss"}},
	}
}

// holdCall makes one held call of a principal: it is proposed, approved, granted and finished.
func holdCall(t *testing.T, tickets *approval.Tickets, who string, i int) (string, error) {
	held := heldCall(fmt.Sprintf(`{"n":%d}`, i))
	held.Principal.Subject = who
	claim, err := tickets.Claim(t.Context(), held)
	if err == nil {
		_, err = tickets.Decide(t.Context(), approval.Vote{ID: claim.Ticket.ID, Approver: policy.Principal{Subject: "bo", Roles: []string{"boss"}}, Approve: true})
	}
	if err == nil {
		_, err = tickets.Claim(t.Context(), held)
	}
	if err != nil {
		return "", err
	}
	return claim.Ticket.ID, tickets.Finish(t.Context(), claim.Ticket.ID, approval.StateDone, []byte(`{"content":[]}`), "")
}

// changeCost is what a held call costs.
func changeCost(t *testing.T) float64 {
	tickets := openTickets(t, openDatabase(t, postgres.Database(t)), filepath.Join(t.TempDir(), "keys"))
	one := func(i int) error {
		_, err := holdCall(t, tickets, "ann", i)
		return err
	}
	perRun(t, 20, one)
	return perRun(t, 200, func(i int) error { return one(i + 20) })
}

// TestHeldCalls measures held calls with old tickets in the state: of one caller, and of 16 at three
// replicas. It runs only with TOOLGATE_MEASURE set; TOOLGATE_OLD_TICKETS lists how many old tickets
// there are.
func TestHeldCalls(t *testing.T) {
	if os.Getenv("TOOLGATE_MEASURE") == "" {
		t.Skip("prints a table of docs/evidence/capacity.md (TOOLGATE_MEASURE=1)")
	}
	fmt.Println("| Store | Old tickets | one caller | 16 callers |\n|---|--:|--:|--:|")
	for _, engine := range []string{"SQLite", "PostgreSQL"} {
		address, secrets, old := filepath.Join(t.TempDir(), "state.db"), filepath.Join(t.TempDir(), "keys"), 0
		if engine == "PostgreSQL" {
			address = postgres.Database(t)
		}
		var replicas [3]*approval.Tickets
		for i := range replicas {
			replicas[i] = openTickets(t, openDatabase(t, address), secrets)
		}
		first, err := holdCall(t, replicas[0], "ann", 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, list := range strings.Split(cmp.Or(os.Getenv("TOOLGATE_OLD_TICKETS"), "0,300000"), ",") {
			want, err := strconv.Atoi(list)
			if err == nil && want > old {
				err = filled.Tickets(t.Context(), openDatabase(t, address), first, old+1, want)
			}
			if err != nil {
				t.Fatal(err)
			}
			old = want
			alone := perRun(t, 100, func(n int) error {
				_, err := holdCall(t, replicas[0], "ann", 1000*i+n+1)
				return err
			})
			var callers errgroup.Group
			began := time.Now()
			for c := range 16 {
				callers.Go(func() (err error) {
					for n := 0; n < 25 && err == nil; n++ {
						_, err = holdCall(t, replicas[c%3], fmt.Sprintf("agent-%d", c), 1000*i+n)
					}
					return err
				})
			}
			if err := callers.Wait(); err != nil {
				t.Fatal(err)
			}
			fmt.Printf("| %s | %d | %.1f ms | %.0f/s |\n", engine, old, alone*1e3, 16*25/time.Since(began).Seconds())
		}
	}
}

// statementCost is what one small read costs.
func statementCost(t *testing.T) float64 {
	db := openDatabase(t, postgres.Database(t))
	read := func(int) error {
		var changes int
		return db.Read.QueryRowContext(t.Context(), "SELECT changes FROM approval_clock").Scan(&changes)
	}
	perRun(t, 100, read)
	return perRun(t, 3000, read)
}

// usedCPU answers the microseconds of CPU that a server has used.
const usedCPU = `local all, info = 0, redis.call('INFO', 'cpu')
for _, kind in ipairs({'used_cpu_sys', 'used_cpu_user'}) do all = all + tonumber(string.match(info, kind .. ':([%d.]+)')) end
return {math.floor(all * 1000000)}`

// scriptCost is the CPU of the server of limits for a call that asks it for one token.
func scriptCost(t *testing.T) float64 {
	server := redis.Start(t, "")
	c, err := valkey.Open(server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	shared := fleet.NewLimits(t.Context(), fleet.LimitOptions{Server: c, Patience: time.Second})
	defer shared.Close()
	rate, err := limit.ParseRate("1000000/24h")
	if err != nil {
		t.Fatal(err)
	}
	limiter := shared.New("calls", limit.Rules{Default: &rate})
	const calls = 3000
	before := server.Run(usedCPU)[0]
	perRun(t, calls, func(int) error {
		if over := limiter.Spend(time.Now(), policy.Principal{Subject: "ann"}, policy.Tool{Exposed: "up__say"}, nil); over != nil {
			return fmt.Errorf("over %s", over.Limit)
		}
		return nil
	})
	if n := shared.Status().Trips; n < calls {
		t.Fatalf("%d calls asked the server %d times", calls, n)
	}
	return float64(server.Run(usedCPU)[0]-before) / 1e6 / calls
}
