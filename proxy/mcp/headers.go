package mcp

import (
	"net/http"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/internal/paramheader"
)

// standardFault reports how the headers Mcp-Method and Mcp-Name contradict m, ""
// when they agree. Member is the member of params that Mcp-Name repeats, "" for
// a method without one.
func standardFault(h http.Header, m *jsonrpc.Message, member string) string {
	if fault := paramheader.CheckText(h, paramheader.Method, m.Method, false); fault != "" || member == "" {
		return fault
	}
	raw, _ := m.Param(member)
	name, ok := jsonrpc.Text(raw)
	if !ok {
		return "params." + member + ", which header " + paramheader.Name + " repeats, is no string"
	}
	return paramheader.CheckText(h, paramheader.Name, name, true)
}
