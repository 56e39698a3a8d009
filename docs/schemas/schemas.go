// Package schemas holds the JSON Schema (draft 2020-12) and OpenAPI documents
// of what toolgate reads and writes, for those who write a client and for the
// program itself: each exists once.
package schemas

import (
	"embed"
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

// Files has every document by its file name.
//
//go:embed *.json
var Files embed.FS

// OpenAPI returns an OpenAPI document of Files with the version of the program as
// info.x-toolgate-version. It returns an error for a name that Files has no such document of.
func OpenAPI(name, version string) ([]byte, error) {
	text, err := Files.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("reading the OpenAPI document: %w", err)
	}
	info, _ := jsonrpc.Get(text, "info")
	if info, err = jsonrpc.Set(info, "x-toolgate-version", jsonrpc.Quote(version)); err == nil {
		text, err = jsonrpc.Set(text, "info", info)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the OpenAPI document %s: %w", name, err)
	}
	return text, nil
}
