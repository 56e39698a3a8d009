package registry_test

import (
	"fmt"

	"github.com/toolgate/toolgate/registry"
)

// A catalogue finds a tool by its exposed name on the route of all servers, and by
// the server's own name on the route of that server.
func ExampleCatalogue_Lookup() {
	read := &registry.Tool{Server: "files", Name: "read", Exposed: "files__read"}
	c := registry.NewCatalogue([]string{"files"}, read)
	for _, at := range []struct{ route, name string }{{"", "files__read"}, {"files", "read"}, {"", "read"}} {
		_, ok := c.Lookup(at.route, at.name)
		fmt.Printf("%q %s: %t\n", at.route, at.name, ok)
	}
	// Output:
	// "" files__read: true
	// "files" read: true
	// "" read: false
}
