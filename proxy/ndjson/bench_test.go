package ndjson_test

import (
	"io"
	"strings"
	"testing"
)

// BenchmarkInvoke is one invoke down the whole road, without an upstream.
func BenchmarkInvoke(b *testing.B) {
	bench := newBench()
	d := bench.door(b, nil)
	in := strings.NewReader(strings.Repeat(invoke("", "structured", `{"n":1}`)+"\n", b.N))
	b.ReportAllocs()
	b.ResetTimer()
	if err := d.Serve(b.Context(), in, io.Discard); err != nil {
		b.Fatal(err)
	}
}
