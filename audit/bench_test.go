package audit_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
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
		if rep, err := (audit.Evidence{}).Verify(root); err != nil || !rep.OK() {
			b.Fatal(rep, err)
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	r, now := sample("x"), time.Now()
	var line, scratch []byte
	b.ReportAllocs()
	for b.Loop() {
		line, scratch = audit.AppendRecord(line, scratch, r, audit.KindOutcome, now)
	}
	b.SetBytes(int64(len(line)))
}
