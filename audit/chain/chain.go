// Package chain has the files of one chain of the audit trail: its directory with segments, HEAD and
// lock, and the lines with their hashes. It knows nothing of what a record says. Package audit, whose
// comment describes the files, writes and reads records with it; package audit/notary proves them.
//
// Functions that read may run beside the process that writes. Everything here is safe for concurrent
// use but a Position, which belongs to one goroutine.
package chain

import "regexp"

// Version is the version of the form of lines and HEAD.
const Version = 1

var chainName = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z_-]{0,63}$`)

// IsName reports whether name can be that of a chain, or of a trail.
func IsName(name string) bool { return chainName.MatchString(name) }
