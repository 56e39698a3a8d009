package sandbox

import (
	"embed"
	"fmt"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/toolgate/toolgate/internal/guardian"
)

// programs holds the guardian as a program of its own, when the Makefile has built
// it: it starts in a tenth of the time and memory that this whole program needs.
//
//go:embed all:programs
var programs embed.FS

// word is the first argument of this program when it runs as a guardian, because
// none is embedded.
const word = "__guardian"

// IsGuardian reports whether this process was started as a guardian. A program that
// starts servers asks first of all, with its arguments after the program name, and if
// so exits with the code of guardian.Main(args[1:]).
func IsGuardian(args []string) bool {
	return len(args) > 1 && args[0] == word && guardian.Inside()
}

// program is the guardian's executable: an embedded one in sealed memory, which no
// server can change, or this program.
type program struct {
	once sync.Once
	file *os.File // nil = this program
	err  error
}

// path returns the path of the executable, and the arguments before those of the
// guardian. A file that is not nil has to be open as guardian.ProgramFD in the new
// process: descriptors of this process may have other files by the time of exec.
// executable is this program, "" = as the system knows it.
func (p *program) path(executable string) (path string, first []string, file *os.File, err error) {
	p.once.Do(func() { p.file, p.err = load() })
	switch {
	case p.err != nil:
		return "", nil, nil, p.err
	case p.file != nil:
		return fmt.Sprintf("/proc/self/fd/%d", guardian.ProgramFD), nil, p.file, nil
	case executable == "":
		if executable, err = os.Executable(); err != nil {
			return "", nil, nil, fmt.Errorf("finding this program: %w", err)
		}
	}
	return executable, []string{word}, nil, nil
}

// load writes the embedded guardian to sealed memory (memfd_create(2)). It returns nil
// when none is embedded.
func load() (*os.File, error) {
	data, err := programs.ReadFile("programs/guardian_" + runtime.GOARCH)
	if err != nil {
		return nil, nil //nolint:nilerr // there is none
	}
	fd, err := unix.MemfdCreate("toolgate-guardian", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("making memory for the guardian: %w", err)
	}
	f := os.NewFile(uintptr(fd), "toolgate-guardian")
	_, err = f.Write(data)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SEAL|unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE)
	}
	if err != nil {
		_ = f.Close() // err says more
		return nil, fmt.Errorf("writing the guardian: %w", err)
	}
	return f, nil
}
