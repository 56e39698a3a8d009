package jsonrpc_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// call is a tools/call of the usual size, 300 bytes.
const call = `{"jsonrpc":"2.0","id":42,"method":"tools/call","params":{"name":"payments__transfer","arguments":{"amount":1000000000000000000,"currency":"EUR","to":"DE02120300000000202051","memo":"invoice 2026-117, second part","urgent":false,"tags":["rent","office"]},"_meta":{"progressToken":7,"io.example/run":"a-17"}}}`

// sizes are calls of the sizes that matter.
func sizes() map[string]string {
	array := func(element string, n int) string {
		return strings.Replace(call, `["rent","office"]`, "["+strings.Repeat(element+",", n)+"0]", 1)
	}
	return map[string]string{
		"300B":       call,
		"1.1kB":      array(`{"item":"paper","count":12,"price":1.25,"note":null}`, 15),
		"100kB":      array(`{"item":"paper","count":12,"price":1.25,"note":"some longer words of text"}`, 1300),
		"lines100kB": strings.Replace(call, "second part", strings.Repeat(`the five boxing wizards jump ..\n`, 3200), 1),
		"text100kB":  strings.Replace(call, "second part", strings.Repeat("lorem ipsum ", 8600), 1),
		"wide100kB":  strings.Replace(call, "second part", strings.Repeat("été 日本 ", 6700), 1),
		"text4kB":    strings.Replace(call, "second part", strings.Repeat("lorem ipsum ", 320), 1),
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, text := range sizes() {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := jsonrpc.Decode([]byte(text), jsonrpc.Limits{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	m, err := jsonrpc.Decode([]byte(call), jsonrpc.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := jsonrpc.Get(m.Params, "arguments"); !ok {
			b.Fatal("no arguments")
		}
	}
}

func BenchmarkSet(b *testing.B) {
	m, err := jsonrpc.Decode([]byte(call), jsonrpc.Limits{})
	if err != nil {
		b.Fatal(err)
	}
	name := jsonrpc.Quote("transfer")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jsonrpc.Set(m.Params, "name", name); err != nil {
			b.Fatal(err)
		}
	}
}
