package audit

import (
	"fmt"
	"time"
)

// Report is the result of Verify.
type Report struct {
	Chains []Chain `json:"chains"` // by name, which for ULIDs is by age
}

// OK reports whether no chain has a problem.
func (r Report) OK() bool {
	for _, c := range r.Chains {
		if len(c.Problems) > 0 {
			return false
		}
	}
	return true
}

// Chain describes the log of one process.
type Chain struct {
	Instance   string       `json:"instance"`
	Segments   int          `json:"segments"`
	Records    int          `json:"records"` // in the chain, including open and close
	First      time.Time    `json:"first"`
	Last       time.Time    `json:"last"`
	Seq        uint64       `json:"seq"`    // number of the last record
	Head       string       `json:"head"`   // hash of the last record; noted elsewhere, it proves the chain later
	Closed     bool         `json:"closed"` // ended cleanly; false for a running process and after a crash
	Problems   []Problem    `json:"problems,omitempty"`
	Unfinished []Unfinished `json:"unfinished,omitempty"`
	Torn       []Place      `json:"torn,omitempty"`      // unfinished last lines: never acknowledged
	Abandoned  int          `json:"abandoned,omitempty"` // records that a failed write left behind
}

// Place is a position in a file of the log.
type Place struct {
	File   string `json:"file"`   // relative to the root, with slashes
	Line   int    `json:"line"`   // from 1; 0 = the file as a whole
	Offset int64  `json:"offset"` // in bytes, of the start of the line or of the fault itself
}

// String returns file:line.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Problem is one fault of a chain.
type Problem struct {
	Place
	What string `json:"what"`
}

// String returns file:line (byte n): what.
func (p Problem) String() string {
	return fmt.Sprintf("%s (byte %d): %s", p.Place, p.Offset, p.What)
}

// Unfinished is a decision without an outcome: the call is running, or the process
// ended during the call and its outcome is unknown.
type Unfinished struct {
	Seq        uint64    `json:"seq"`
	Time       time.Time `json:"time"`
	CallID     string    `json:"call_id"`
	DecisionID string    `json:"decision_id"`
	Server     string    `json:"server"`
	Tool       string    `json:"tool"`
}
