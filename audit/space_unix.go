//go:build linux || darwin

package audit

import "syscall"

// freeSpace returns the bytes of the file system of dir, and those that are free.
func freeSpace(dir string) (free, total int64, err error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, 0, err
	}
	size := int64(disk.Bsize) //nolint:unconvert // it is a uint32 on other systems
	return int64(disk.Bavail) * size, int64(disk.Blocks) * size, nil
}
