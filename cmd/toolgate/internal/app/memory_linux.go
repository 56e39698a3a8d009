package app

import (
	"os"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"
)

// releaseProgram unmaps the pages of the program file that this process has read so far.
// The start needs far more of them than the calls after it, and the system counts them to
// the process until memory is short. A page that is needed again is mapped from the page
// cache. Mappings that the process has written to are left alone, because their pages
// would be lost.
func releaseProgram() {
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer f.Close()
	maps := make([]byte, 4<<10) // the program is mapped first; the system would count the pages of all others
	n, _ := f.Read(maps)
	for _, m := range regexp.MustCompile(`(?m)^(\w+)-(\w+) r-.p .* /.*\n(?:[A-Z].*\n)*?Anonymous: +0 kB`).FindAllSubmatch(maps[:n], -1) {
		from, _ := strconv.ParseUint(string(m[1]), 16, 64)
		to, _ := strconv.ParseUint(string(m[2]), 16, 64)
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED) // what is refused stays
	}
}
