package wire_test

import (
	"fmt"

	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/signal"
)

// One failure has other numbers in each dialect; in dialect mcp the model reads
// it as a tool's result.
func ExampleAnswer() {
	failure := wire.Failure{Kernel: &signal.KernelError{Code: signal.CodePolicyDenied}, Reason: "role observer may not transfer"}
	for _, dialect := range []wire.Dialect{wire.Gateway, wire.MCP} {
		reply, err := wire.Answer(dialect, failure)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(dialect, reply.HTTP, "error:", reply.Error != nil, "result:", reply.Result != nil)
	}
	// Output:
	// gateway 403 error: true result: false
	// mcp 403 error: false result: true
}

// Validate says which member of a message is at fault, and what was wanted.
func ExampleEnvelope_Validate() {
	envelope := wire.Envelope{Profile: wire.ProfileStrict}
	message, _ := envelope.Validate([]byte(`{"jsonrpc":"2.0","id":"req-1","method":"ping","params":{}}`))
	fmt.Println(message.Kind, message.Method)
	_, fault := envelope.Validate([]byte(`{"jsonrpc":"2.0","id":1,"method":"ping","params":{}}`))
	fmt.Println(fault.Reason)
	// Output:
	// request ping
	// /id: want string, got number 1
}
