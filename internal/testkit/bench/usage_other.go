//go:build !linux

package main

import (
	"errors"
	"runtime"
	"time"
)

var errLinuxOnly = errors.New("is measured on Linux only")

func cpuTime(int) (time.Duration, error)            { return 0, errLinuxOnly }
func resident(int) (float64, error)                 { return 0, errLinuxOnly }
func anonymous(int) (float64, error)                { return 0, errLinuxOnly }
func children(int) ([]int, error)                   { return nil, errLinuxOnly }
func syncTime(string, int) ([]time.Duration, error) { return nil, errLinuxOnly }
func processor() string                             { return "unknown CPU" }
func kernel() (release, load string)                { return runtime.GOOS, "unknown" }
func fineSleep()                                    {}
func pause(d time.Duration)                         { time.Sleep(d) }
