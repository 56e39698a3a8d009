package index_test

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
	"github.com/toolgate/toolgate/signal"
)

// words of arguments are as frequent as words of a language are.
func words(r *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "word%d ", int(20000*r.Float64()*r.Float64()*r.Float64()))
	}
	return b.String()
}

// writeCalls writes a trail with n calls: the records have what those of a gate have.
func writeCalls(b *testing.B, root string, n int) {
	b.Helper()
	l, err := audit.Open(root, audit.Options{Durability: audit.OS})
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	write := func(kind audit.Kind, rec *audit.Record) {
		if err := l.Write(kind, rec); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		agent, tool := r.IntN(200), r.IntN(100)
		rec := audit.Record{
			CallID: signal.UniqueID("sig_"), DecisionID: signal.UniqueID("dec_"), TraceID: fmt.Sprintf("%032x", r.Uint64()), RequestID: strconv.Itoa(i),
			Principal: audit.Principal{Subject: fmt.Sprintf("agent-%d", agent), Person: fmt.Sprintf("person-%d@example.org", agent%50), Roles: []string{"researcher"}, Client: "inspector/1.0"},
			Transport: "http", Era: "2025-06-18", Route: "standard", Session: fmt.Sprintf("session-%d", agent), Server: fmt.Sprintf("server-%d", tool%10), Tool: fmt.Sprintf("tool_%d", tool),
			Exposed: fmt.Sprintf("server-%d__tool_%d", tool%10, tool), Fingerprint: "sha256:" + strings.Repeat("ab", 32),
			Arguments: []byte(fmt.Sprintf(`{"query":%q,"limit":%d,"amount":%d.50,"to":"0x%016x"}`, words(r, 8), r.IntN(10)*10, r.IntN(10000), r.Uint64())),
			Policy:    audit.Policy{Effect: "allow", Rule: fmt.Sprintf("rule-%d", tool%7), Reason: "the role may call it", Revision: "sha256:" + strings.Repeat("cd", 32)},
			Input:     []byte(`{"principal":{"issuer":"https://login.example.org"},"tool":{"annotations":{"readOnlyHint":true},"risk":"low"},"usage":{"calls":17}}`),
		}
		write(audit.KindDecision, &rec)
		out := rec
		out.Arguments, out.Input, out.ArgumentsSHA256 = nil, nil, strings.Repeat("ef", 32)
		out.Outcome, out.Stage, out.DurationMS, out.ResultSHA256, out.ResultBytes, out.ResultTokens = audit.Allowed, "close", float64(r.IntN(5000))/10, strings.Repeat("ef", 32), 1234, 309
		if r.IntN(100) == 0 {
			out.Outcome, out.Stage, out.Code, out.Error = audit.Failed, "forward", "UPSTREAM_ERROR", "the server answered with an error"
		}
		if r.IntN(1000) == 0 {
			out.Ticket = fmt.Sprintf("apr_%d", i)
		}
		write(audit.KindOutcome, &out)
	}
	if err := l.Close(); err != nil {
		b.Fatal(err)
	}
}

func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func sizeOf(b *testing.B, dir string) (size int64) {
	b.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		size += info.Size()
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return size
}

// BenchmarkIndex fills an index of TOOLGATE_BENCH_CALLS calls, 20,000 without it, and searches it. With
// TOOLGATE_BENCH_POSTGRES=1 it is in PostgreSQL, whose own CPU time does not count.
func BenchmarkIndex(b *testing.B) {
	n, _ := strconv.Atoi(cmp.Or(os.Getenv("TOOLGATE_BENCH_CALLS"), "20000"))
	dir := b.TempDir()
	root := filepath.Join(dir, "audit")
	writeCalls(b, root, n)
	o := index.Options{Trail: root, Owner: "trail", File: filepath.Join(dir, "index", "calls.db"), Lock: filepath.Join(dir, "lock")}
	if os.Getenv("TOOLGATE_BENCH_POSTGRES") != "" {
		db, err := store.OpenPostgres(b.Context(), postgres.Database(b), store.PostgresMigrations())
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		o.DB = db
	}
	begun := cpu()
	if calls, err := index.New(o).Rebuild(b.Context(), nil); err != nil || calls != n {
		b.Fatal(calls, err)
	}
	spent := cpu() - begun
	trail := sizeOf(b, root)
	b.Run("fill", func(b *testing.B) {
		for b.Loop() {
		}
		b.ReportMetric(float64(spent.Microseconds())/float64(n), "µs/call")
		b.ReportMetric(float64(trail)/float64(n), "trail-B/call")
		size := int64(0)
		if o.DB == nil {
			size = sizeOf(b, filepath.Dir(o.File))
		} else if err := o.DB.Read.QueryRow("SELECT pg_total_relation_size('call_parts') + pg_total_relation_size('call_blocks')").Scan(&size); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(size)/float64(n), "index-B/call")
		b.ReportMetric(100*float64(size)/float64(trail), "%")
	})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	x := index.New(o)
	go x.Run(ctx)
	for {
		if _, err := x.Search(ctx, index.Query{}); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	for name, q := range map[string]index.Query{
		"nothing": {}, "outcome": {Outcome: "allowed"}, "rare outcome": {Outcome: "failed"}, "principal": {Principal: "agent-7"}, "no principal": {Principal: "nobody"},
		"common and rare": {Outcome: "failed", Principal: "agent-7", Rule: "rule-3"}, "never together": {Server: "server-1", Tool: "server-2__tool_2"},
		"word": {Text: "word5"}, "words": {Text: "word0 word1 word2 word3 word17"}, "argument": {Argument: "/amount=17.50"}, "common argument": {Argument: "/limit=10"},
		"page 1000": {Outcome: "failed", Limit: 1000}, "until": {Until: time.Now().Add(-time.Hour)}, "text and principal": {Principal: "agent-7", Text: "word9000"},
	} {
		b.Run("search "+name, func(b *testing.B) {
			found := 0
			for b.Loop() {
				page, err := x.Search(ctx, q)
				if err != nil {
					b.Fatal(err)
				}
				found = len(page.Calls)
			}
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms")
			b.ReportMetric(float64(found), "calls")
		})
	}
}
