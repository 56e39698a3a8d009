package program

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
)

// A test that imports this package, and every program that it starts, keeps toolgate's
// keys below the temporary directory, never in the user's home. Tests share them, as
// the toolgates of one user do. A script that looks at files of other programs in that
// directory names one of its own in TOOLGATE_TESTS_CONFIG.
func init() {
	home := cmp.Or(os.Getenv("TOOLGATE_TESTS_CONFIG"), filepath.Join(os.TempDir(), fmt.Sprintf("toolgate-tests-%d", os.Getuid())))
	if err := os.Setenv("XDG_CONFIG_HOME", home); err != nil {
		panic(err)
	}
}
