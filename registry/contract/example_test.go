package contract_test

import (
	"fmt"

	"github.com/toolgate/toolgate/registry/contract"
)

func ExampleTools() {
	for _, tool := range contract.Tools() {
		fmt.Println(tool.Name)
	}
	// Output:
	// search_internet
	// generate_media
	// manage_wallet
}
