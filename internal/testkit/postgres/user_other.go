//go:build !linux

package postgres

import "syscall"

// unprivileged returns as whom the server runs: the user of the test.
func unprivileged(string) (*syscall.SysProcAttr, error) { return nil, nil }

func memory() string { return "" }
