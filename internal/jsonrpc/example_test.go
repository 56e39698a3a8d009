package jsonrpc_test

import (
	"fmt"

	"github.com/toolgate/toolgate/internal/jsonrpc"
)

func Example() {
	m, err := jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"bank__pay","arguments":{"amount":1e2}}}`), jsonrpc.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	name, _ := m.Param("name")
	params, err := jsonrpc.Set(m.Params, "name", jsonrpc.Quote("pay"))
	fmt.Println(m.Method, string(name), string(params), err)

	_, err = jsonrpc.Decode([]byte(`{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"arguments":{"amount":1,"amount":100}}}`), jsonrpc.Limits{})
	fmt.Println(err)

	// Output:
	// tools/call "bank__pay" {"name":"pay","arguments":{"amount":1e2}} <nil>
	// duplicate key "amount" at byte 80 (/params/arguments)
}
