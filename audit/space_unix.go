//go:build linux || darwin

package audit

import "syscall"

// freeSpace returns the free and the total bytes of the file system that holds dir.
func freeSpace(dir string) (free, total int64, err error) {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return 0, 0, err
	}
	size := int64(disk.Bsize) //nolint:unconvert // it is a uint32 on other systems
	return int64(disk.Bavail) * size, int64(disk.Blocks) * size, nil
}
