//go:build !linux && !darwin

package audit

import "errors"

// freeSpace returns errors.ErrUnsupported.
func freeSpace(string) (free, total int64, err error) { return 0, 0, errors.ErrUnsupported }
