package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/internal/testkit/parts"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("AUDIT_TEST_VICTIM"); dir != "" {
		victim(dir)
	}
	goleak.VerifyTestMain(m)
}

// sample is a record with every member set.
func sample(call string) *audit.Record {
	return &audit.Record{
		CallID: call, DecisionID: "dec_" + call, TraceID: "trc_1", ParentID: "trc_0",
		Principal: audit.Principal{Subject: "agent-7", Roles: []string{"researcher", "creator"}, Client: "inspector/1.0", Tenant: "acme"},
		Transport: "http", Era: "2025-06-18", Route: "standard", Session: "s-1", RequestID: "17", Tags: map[string]string{"domain": "finance", "urgency": "high"},
		Server: "standard", Tool: "manage_wallet", Exposed: "manage_wallet", Fingerprint: "sha256:ab",
		Arguments:  json.RawMessage(`{"action":"transfer","asset":"USD","amount":50.10,"destination":"bob"}`),
		Policy:     audit.Policy{Effect: "allow", Rule: "role", Reason: "the role may call it", Revision: "sha256:cd"},
		Credential: &audit.Credential{ID: "con_1", Type: "oauth", Account: "octo-ann", Scopes: []string{"repo"}},
		Ticket:     "apr_1", Outcome: audit.Allowed, Stage: "forward", Code: "T4_TOOL_EXECUTION_FAILED",
		DurationMS: 12.345, UpstreamMS: 11.25, Signals: []string{"sig_1", "sig_2"}, ResultSHA256: strings.Repeat("0f", 32), ResultBytes: 321, ResultTokens: 81, Error: "boom", Replayed: true,
	}
}

// voted is a record of a ticket's change with every member set.
func voted(call string) *audit.Record {
	full := sample(call)
	return &audit.Record{
		DecisionID: full.DecisionID, TraceID: full.TraceID, Principal: full.Principal,
		Transport: full.Transport, Era: full.Era, Session: full.Session,
		Server: full.Server, Tool: full.Tool, Exposed: full.Exposed, Fingerprint: full.Fingerprint,
		ArgumentsSHA256: strings.Repeat("0e", 32), Policy: full.Policy, Ticket: full.Ticket,
		Change: &audit.Change{
			Seq: 3, From: "proposed", To: "denied", Who: "ann", Reason: "not today", Digest: "sha256:" + strings.Repeat("0e", 32),
			Quorum: 3, Approvals: 1, Each: map[string]int{"boss": 1, "finance": 2}, Given: map[string]int{"finance": 1},
		},
	}
}

func open(t *testing.T, root string, opts audit.Options) *audit.Log {
	t.Helper()
	l, err := audit.Open(root, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func verify(t *testing.T, root string) notary.Report {
	t.Helper()
	rep, err := notary.Evidence{}.Verify(root)
	if err != nil {
		t.Fatal(err)
	}
	return rep
}

// intact verifies one chain that must have no problem.
func intact(t *testing.T, root string) notary.Chain {
	t.Helper()
	rep := verify(t, root)
	if !rep.OK() || len(rep.Chains) != 1 {
		t.Fatalf("want one intact chain, got %+v", rep)
	}
	return rep.Chains[0]
}

// lines reads every whole line under root in the order of the files.
func lines(t *testing.T, root string) [][]byte {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*", "*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var all [][]byte
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, bytes.Split(bytes.TrimSuffix(data, []byte("\n")), []byte("\n"))...)
	}
	return all
}

func parse(t *testing.T, line []byte) *audit.Record {
	t.Helper()
	r, err := audit.Parse(line)
	if err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return r
}

func TestRecordsComeBack(t *testing.T) {
	for _, durability := range []audit.Durability{audit.Sync, audit.OS} {
		t.Run(string(durability), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "audit")
			now := time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC)
			l := open(t, root, audit.Options{Durability: durability, Instance: "one", Version: "v9", Now: func() time.Time { return now }})
			in := sample("call_1")
			if err := l.Write(audit.KindDecision, in); err != nil {
				t.Fatal(err)
			}
			if err := l.Write(audit.KindOutcome, in); err != nil {
				t.Fatal(err)
			}
			if err := l.Write(audit.KindTicket, voted("call_1")); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			chain := intact(t, root)
			if chain.Records != 5 || !chain.Closed || len(chain.Unfinished) != 0 {
				t.Errorf("chain = %+v", chain)
			}
			all := lines(t, root)
			want := sample("call_1")
			want.V, want.Seq, want.Kind, want.Instance, want.Time = 1, 3, audit.KindOutcome, "one", now
			got := parse(t, all[2])
			want.Prev, want.Hash, want.ArgumentsSHA256 = parse(t, all[1]).Hash, chainHash(all[2]), got.ArgumentsSHA256
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
			want = voted("call_1")
			want.V, want.Seq, want.Kind, want.Instance, want.Time = 1, 4, audit.KindTicket, "one", now
			want.Prev, want.Hash = got.Hash, chainHash(all[3])
			if diff := cmp.Diff(want, parse(t, all[3])); diff != "" {
				t.Errorf("ticket (-want +got):\n%s", diff)
			}
			if first := parse(t, all[0]); first.Kind != audit.KindOpen || first.Version != "v9" || first.PID != os.Getpid() {
				t.Errorf("open record = %+v", first)
			}
			if last := parse(t, all[4]); last.Kind != audit.KindClose || last.Hash != chain.Head {
				t.Errorf("close record = %+v, head %s", last, chain.Head)
			}
		})
	}
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	root := filepath.Join(t.TempDir(), "audit")
	open(t, root, audit.Options{Instance: "one"})
	for path, want := range map[string]os.FileMode{
		"": 0o700, "one": 0o700, "one/000001.jsonl": 0o600, "one/HEAD": 0o600,
	} {
		info, err := os.Stat(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%q has mode %o, want %o", path, got, want)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	root := t.TempDir()
	open(t, root, audit.Options{Instance: "taken"})
	for name, opts := range map[string]audit.Options{
		"an unknown durability":  {Durability: "maybe"},
		"a name with a path":     {Instance: "../x"},
		"an instance that is up": {Instance: "taken"},
	} {
		if l, err := audit.Open(root, opts); err == nil {
			l.Close()
			t.Errorf("%s: opened", name)
		}
	}
}

func TestSegmentsFollowEachOther(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{SegmentBytes: 4000})
	for i := range 50 {
		if err := l.Write(audit.KindDecision, sample(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	chain := intact(t, root)
	if chain.Records != 52 || chain.Segments < 10 || len(chain.Unfinished) != 50 {
		t.Errorf("got %d records in %d segments, %d unfinished", chain.Records, chain.Segments, len(chain.Unfinished))
	}
}

// A record makes the same line whether its caller or the writer's goroutine writes it.
func TestAloneAndTogetherWriteTheSame(t *testing.T) {
	parts.Long(t, "writes thousands of records")
	for _, durability := range []audit.Durability{audit.Sync, audit.OS} {
		var files [2][][]byte
		for i := range files {
			root := t.TempDir()
			l := open(t, root, audit.Options{
				Durability: durability, Instance: "one", SegmentBytes: 9000, CheckpointEvery: 7,
				Now: func() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 89, time.UTC) },
			})
			if i == 1 {
				l.Queue()
			}
			for n := range unlessShort(60, 20) {
				r := sample(fmt.Sprint(n))
				if err := errors.Join(l.Write(audit.KindDecision, r), l.Write(audit.KindTicket, voted(r.CallID)), l.Write(audit.KindOutcome, r)); err != nil {
					t.Fatal(err)
				}
			}
			l.Close()
			intact(t, root)
			files[i] = lines(t, root)
		}
		if diff := cmp.Diff(files[0], files[1]); diff != "" {
			t.Errorf("%s: alone and together differ:\n%s", durability, diff)
		}
	}
}

func TestAClosedLogRefuses(t *testing.T) {
	l := open(t, t.TempDir(), audit.Options{})
	l.Close()
	if err := l.Write(audit.KindDecision, sample("x")); !errors.Is(err, audit.ErrClosed) {
		t.Errorf("decision after close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
}

func TestManyCallersOneChain(t *testing.T) {
	callers, calls := 256, unlessShort(20, 2)
	for _, durability := range []audit.Durability{audit.Sync, audit.OS} {
		t.Run(string(durability), func(t *testing.T) {
			root := t.TempDir()
			l := open(t, root, audit.Options{Durability: durability, SegmentBytes: 1 << 20, CheckpointEvery: 100})
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := range calls {
						r := sample(fmt.Sprintf("%d-%d", c, i))
						if err := errors.Join(l.Write(audit.KindDecision, r), l.Write(audit.KindOutcome, r)); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			chain := intact(t, root)
			if want := 2*callers*calls + 2; chain.Records != want || len(chain.Unfinished) != 0 {
				t.Errorf("%d records (%d unfinished), want %d (0)", chain.Records, len(chain.Unfinished), want)
			}
		})
	}
}

func TestCloseUnderLoadLosesNothingAcknowledged(t *testing.T) {
	root := t.TempDir()
	l := open(t, root, audit.Options{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	acked := map[string]bool{}
	started := make(chan struct{}, 32)
	for c := range 32 {
		wg.Go(func() {
			for i := 0; ; i++ {
				id := fmt.Sprintf("%d-%d", c, i)
				if err := l.Write(audit.KindDecision, sample(id)); err != nil {
					if !errors.Is(err, audit.ErrClosed) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				acked[id] = true
				mu.Unlock()
				if i == 0 {
					started <- struct{}{}
				}
			}
		})
	}
	for range 32 {
		<-started
	}
	l.Close()
	wg.Wait()
	intact(t, root)
	for _, line := range lines(t, root) {
		delete(acked, parse(t, line).CallID)
	}
	if len(acked) != 0 {
		t.Errorf("%d acknowledged decisions are not in the log", len(acked))
	}
}

// unlessShort returns whole, or with -short short.
func unlessShort[T any](whole, short T) T {
	if testing.Short() {
		return short
	}
	return whole
}
