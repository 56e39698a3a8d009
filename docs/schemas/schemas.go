// Package schemas holds the JSON Schema (draft 2020-12) and OpenAPI documents
// of what toolgate reads and writes, for those who write a client and for the
// program itself: each exists once.
package schemas

import "embed"

// Files has every document by its file name.
//
//go:embed *.json
var Files embed.FS
