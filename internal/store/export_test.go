package store

import "time"

// SetLease sets how long leases hold.
func (db *DB) SetLease(d time.Duration) { db.lease = d }
