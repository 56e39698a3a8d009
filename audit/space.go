package audit

import (
	"errors"
	"fmt"
)

// ErrReserve is returned for decisions while less than the reserve is free on the file
// system of the trail: no new call is made. Outcomes and other records are written, so
// that calls under way end with their record.
var ErrReserve = errors.New("the disk is at its reserve")

// reserveShare is the largest part of a file system that a reserve takes: 1/20.
const reserveShare = 20

// Space is the free space of the file system of a trail, in bytes.
type Space struct {
	Free    int64
	Reserve int64 // Options.Reserve, or less on a small file system; 0 = there is none
	Err     error // why the free space cannot be read; there is no reserve then
}

// Low reports whether new calls are refused.
func (s Space) Low() bool { return s.Err == nil && s.Free < s.Reserve }

// Scarce reports whether less than twice the reserve is free.
func (s Space) Scarce() bool { return s.Err == nil && s.Free < 2*s.Reserve }

// String says how much is free.
func (s Space) String() string {
	return fmt.Sprintf("%.1f MiB free on the disk of the state directory; below %.1f MiB new calls are refused", float64(s.Free)/(1<<20), float64(s.Reserve)/(1<<20))
}

// Space reads the free space.
func (l *Log) Space() Space { return ReadSpace(l.root, l.opts.Reserve) }

// ReadSpace reads the free space of the file system that holds dir, for a reserve as in
// Options.
func ReadSpace(dir string, reserve int64) Space {
	if reserve <= 0 {
		return Space{}
	}
	free, total, err := freeSpace(dir)
	return Space{Free: free, Reserve: min(reserve, total/reserveShare), Err: err}
}

// watchSpace notes whether new calls are refused, and reports when that changes.
func (l *Log) watchSpace() {
	s := l.Space()
	l.low.Store(s.Low())
	if s.Scarce() != l.scarce {
		if l.scarce = s.Scarce(); l.scarce {
			l.opts.OnError("keeping the disk reserve", errors.New(s.String()))
		}
	}
	l.stride = max(s.Reserve/4, 1<<16)
}
