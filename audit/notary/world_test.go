package notary_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

// Every notary and every log ends its goroutines.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is a record of a call.
func sample(call string) *audit.Record {
	return &audit.Record{
		CallID: call, DecisionID: "dec_" + call, TraceID: "trc_1", Principal: audit.Principal{Subject: "agent-7", Roles: []string{"researcher", "creator"}},
		Transport: "http", Era: "2025-06-18", Session: "s-1", RequestID: "17", Server: "standard", Tool: "manage_wallet", Exposed: "manage_wallet",
		Arguments: json.RawMessage(`{"action":"transfer","asset":"USD","amount":50.10,"destination":"bob"}`), Fingerprint: "sha256:ab",
		Policy:  audit.Policy{Effect: "allow", Rule: "role", Reason: "the role may call it", Revision: "sha256:cd"},
		Outcome: audit.Allowed, Stage: "forward", DurationMS: 12.345, ResultSHA256: strings.Repeat("0f", 32), ResultBytes: 321,
	}
}

func open(t *testing.T, root string, opts audit.Options) *audit.Log {
	t.Helper()
	return openSigned(t, root, opts, notary.Signing{}).Log
}

func openSigned(t *testing.T, root string, opts audit.Options, s notary.Signing) *notary.Log {
	t.Helper()
	l, err := notary.Open(root, opts, s)
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

func parse(t *testing.T, line []byte) *audit.Record {
	t.Helper()
	r, err := audit.Parse(line)
	if err != nil {
		t.Fatalf("%v in %s", err, line)
	}
	return r
}

// chainHash computes the hash of a line the way the comment of package audit says it.
func chainHash(line []byte) string {
	cut := bytes.LastIndex(line, []byte(`,"hash":"`))
	sum := sha256.Sum256([]byte(string(line[:cut]) + "}"))
	return hex.EncodeToString(sum[:])
}
