package sandbox

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Protect closes this process to other processes of the same user: its memory,
// environment and descriptors cannot be read in /proc, and it cannot be traced
// (PR_SET_DUMPABLE). It also clears the block that holds the environment of the
// program's start; os.Getenv is not affected, because Go copies it before main. Protect is
// called before other goroutines start programs.
func Protect() error {
	if err := clearEnviron(); err != nil { // first: an undumpable process cannot open its own memory
		return fmt.Errorf("clearing the environment block: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("closing the process to others: %w", err)
	}
	return nil
}

func clearEnviron() error {
	start, end, err := environBlock()
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	_, err = memory.WriteAt(make([]byte, end-start), start)
	return err
}

// environBlock returns the limits of the environment block (proc_pid_stat(5),
// env_start and env_end).
func environBlock() (start, end int64, err error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, err
	}
	text := string(stat)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // the third field on
	if len(fields) < 49 {
		return 0, 0, fmt.Errorf("/proc/self/stat has %d fields", len(fields)+2)
	}
	from, err := strconv.ParseInt(fields[47], 10, 64)
	if err != nil {
		return 0, 0, err
	}
	to, err := strconv.ParseInt(fields[48], 10, 64)
	if err != nil || to < from || from == 0 {
		return 0, 0, fmt.Errorf("no environment block in /proc/self/stat")
	}
	return from, to, nil
}
