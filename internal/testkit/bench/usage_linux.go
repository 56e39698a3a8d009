package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime returns the CPU time of a process, user and system, all threads, those
// that have ended included. The clock of a process has no ticks, unlike /proc.
func cpuTime(pid int) (time.Duration, error) {
	const everyThread = 2 // CPUCLOCK_SCHED of a process, linux/posix-timers.h
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|everyThread), &t); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}

// resident returns the resident memory of a process in bytes.
func resident(pid int) (float64, error) { return kilobytes(pid, "status", "VmRSS:") }

// anonymous returns the memory of a process in bytes that no file backs.
func anonymous(pid int) (float64, error) { return kilobytes(pid, "smaps_rollup", "Anonymous:") }

// kilobytes reads a line of a file of /proc/PID, "NAME   123 kB", as bytes.
func kilobytes(pid int, file, name string) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			n, err := strconv.ParseFloat(f[1], 64)
			return n * 1024, err
		}
	}
	return 0, fmt.Errorf("no %s in /proc/%d/%s", name, pid, file)
}

// children returns the processes that a process has started.
func children(pid int) (pids []int, err error) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the thread has ended
		}
		for _, word := range strings.Fields(string(text)) {
			child, err := strconv.Atoi(word)
			if err != nil {
				return nil, err
			}
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// fineSleep lets the calling goroutine's thread sleep to the microsecond with pause:
// the runtime's own timers round up to a millisecond when nothing else runs. The
// goroutine keeps the thread until it ends.
func fineSleep() {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1000, 0, 0, 0) // 50 µs where it is refused
}

func pause(d time.Duration) {
	if d > 0 {
		t := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&t, nil) // a signal may end it early: the next request follows
	}
}

// syncTime writes a block to a new file in dir and returns the time that fdatasync
// takes.
func syncTime(dir string, rounds int) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := os.Remove(f.Name()); err != nil { // it ends with f
		return nil, err
	}
	var took []time.Duration
	block := bytes.Repeat([]byte("x"), 1024)
	for range rounds {
		if _, err := f.Write(block); err != nil {
			return nil, err
		}
		begun := time.Now()
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begun))
	}
	return took, nil
}

// processor returns the CPU's model name.
func processor() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // unknown if it cannot be read
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown CPU"
}

// kernel returns the system's name and the load average of the last minute.
func kernel() (release, load string) {
	text, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	average, _ := os.ReadFile("/proc/loadavg")
	load, _, _ = strings.Cut(string(average), " ")
	return "Linux " + strings.TrimSpace(string(text)), load
}
