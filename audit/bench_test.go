package audit_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

func BenchmarkDecision(b *testing.B) {
	for _, durability := range []audit.Durability{audit.OS, audit.Sync} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/callers=%d", durability, callers), func(b *testing.B) {
				l, err := audit.Open(b.TempDir(), audit.Options{Durability: durability})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				b.ReportAllocs()
				b.SetParallelism((callers + 1) / 2) // two cores
				if callers == 1 {
					r := sample("x")
					for b.Loop() {
						if err := l.Write(audit.KindDecision, r); err != nil {
							b.Fatal(err)
						}
					}
					return
				}
				b.RunParallel(func(pb *testing.PB) {
					r := sample("x")
					for pb.Next() {
						if err := l.Write(audit.KindDecision, r); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	root := b.TempDir()
	l, err := audit.Open(root, audit.Options{Durability: audit.OS})
	if err != nil {
		b.Fatal(err)
	}
	for range 1000 {
		if err := l.Write(audit.KindOutcome, sample("x")); err != nil {
			b.Fatal(err)
		}
	}
	l.Close()
	for b.Loop() {
		if rep, err := (notary.Evidence{}).Verify(root); err != nil || !rep.OK() {
			b.Fatal(rep, err)
		}
	}
}

// BenchmarkEncode encodes the two records of a call.
func BenchmarkEncode(b *testing.B) {
	now := time.Now()
	for _, kind := range []audit.Kind{audit.KindDecision, audit.KindOutcome} {
		b.Run(string(kind), func(b *testing.B) {
			r := called(kind)
			var line, scratch []byte
			b.ReportAllocs()
			for b.Loop() {
				line, scratch = audit.AppendRecord(line, scratch, r, kind, now)
			}
			b.SetBytes(int64(len(line)))
		})
	}
}

// called is a record as an allowed call writes it.
func called(kind audit.Kind) *audit.Record {
	hash := strings.Repeat("0f", 32)
	r := &audit.Record{
		CallID: "01M8N5PCPB65WMNR6Z5VASXJHT", DecisionID: "dec_01M8N5PCPB65WMNR6Z5VASXJHV", TraceID: "0af7651916cd43dd8448eb211c80319c",
		Principal: audit.Principal{Subject: "agent-7", Roles: []string{"researcher"}, Client: "bench/1.0"},
		Transport: "streamable-http", Era: "2025-06-18", Route: "standard", Session: "01M8N5PCPB65WMNR6Z5VASXJHW", RequestID: "17",
		Server: "bench", Tool: "echo", Exposed: "bench__echo", Fingerprint: "sha256:" + hash, ArgumentsSHA256: hash,
		Policy: audit.Policy{Effect: "allow", Rule: "role", Reason: "role researcher may call echo", Revision: "sha256:" + hash},
		Stage:  "record", Accepted: true,
	}
	if kind == audit.KindDecision {
		r.Arguments = json.RawMessage(`{"text":"a text of the length that calls have","count":17}`)
		r.Input = json.RawMessage(`{"server":{"trust":"community"},"tool":{"annotations":{"readOnlyHint":true,"title":"Echo"}},"usage":{},"time":"2026-03-04T05:06:07.000000089Z","facts":[],"ticket":null}`)
		return r
	}
	r.Outcome, r.Stage, r.DurationMS, r.ResultSHA256, r.ResultBytes, r.ResultTokens = audit.Allowed, "forward", 0.412, hash, 321, 81
	return r
}
