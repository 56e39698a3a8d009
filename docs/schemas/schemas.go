// Package schemas holds the JSON Schema (draft 2020-12) and OpenAPI documents
// of what toolgate reads and writes, for those who write a client and for the
// program itself: each exists once.
package schemas

import (
	"embed"
	"sync"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Files has every document by its file name.
//
//go:embed *.json
var Files embed.FS

// Read returns the document of Files with a name. It panics where there is none.
func Read(name string) []byte {
	text, err := Files.ReadFile(name)
	if err != nil {
		panic("reading an embedded document: " + err.Error())
	}
	return text
}

// OpenAPI returns a function that returns an OpenAPI document of Files with the version of the
// program as info.x-toolgate-version. The document is made at the first call, which panics for a
// name that Files has no such document of.
func OpenAPI(name, version string) func() []byte {
	return sync.OnceValue(func() []byte {
		text := Read(name)
		info, _ := jsonrpc.Get(text, "info")
		info, err := jsonrpc.Set(info, "x-toolgate-version", jsonrpc.Quote(version))
		if err == nil {
			text, err = jsonrpc.Set(text, "info", info)
		}
		if err != nil { // a test reads both documents
			panic("reading the OpenAPI document " + name + ": " + err.Error())
		}
		return text
	})
}
