package mcp_test

import (
	"testing"

	"github.com/toolgate/toolgate/proxy/mcp"
)

// TestModernConversations holds the door to the wire of the revision without
// sessions; the files are read as those of TestConversations. What calls no tool
// is served on the roads of single servers.
func TestModernConversations(t *testing.T) {
	converse(t, "testdata/modern/*.txtar", func(o *mcp.Options) {
		o.PageSize = 4
		library{o.Gate.(*fakeGate)}.serve(o)
	})
}
