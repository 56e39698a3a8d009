package recorder

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ended is the ID of a process that has ended. The kernel has no such ID.
const ended = 1 << 30

// InsidePID returns pid, of a process in the PID namespace of this process, as text that
// OutsidePID understands.
func InsidePID(pid int) string {
	return strings.TrimSpace(fmt.Sprint(pid, " ", identity("/proc/"+strconv.Itoa(pid))))
}

// OutsidePID returns the ID that this process uses for the process of InsidePID. The ID is
// one that no process has when the process has ended, and 0 when text is none of InsidePID.
func OutsidePID(text string) int {
	inside, want, linux := strings.Cut(text, " ")
	if !linux {
		pid, _ := strconv.Atoi(inside)
		return pid
	}
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		if identity(dir) != want {
			continue
		}
		status, _ := os.ReadFile(dir + "/status") // the process may have ended
		_, ids, _ := strings.Cut(string(status), "\nNSpid:")
		ids, _, _ = strings.Cut(ids, "\n")
		if numbers := strings.Fields(ids); len(numbers) > 0 && numbers[len(numbers)-1] == inside {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			return pid
		}
	}
	return ended
}

// identity returns the PID namespace of a process and when the process was started
// (proc_pid_stat(5), starttime): the kernel uses the numbers of namespaces again.
func identity(dir string) string {
	space, _ := os.Readlink(dir + "/ns/pid")
	stat, _ := os.ReadFile(dir + "/stat") // nothing is read outside Linux
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if space == "" || len(fields) < 20 {
		return ""
	}
	return space + " " + fields[19]
}
