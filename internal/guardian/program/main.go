// Command program is the guardian of stdio servers as a program of its own, which
// toolgate carries along. See package guardian.
package main

import (
	"os"

	"github.com/toolgate/toolgate/internal/guardian"
)

func main() { os.Exit(guardian.Main(os.Args[1:])) }
