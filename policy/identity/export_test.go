package identity

import "time"

// SetUnread sets for how long the store may be out of reach.
func (r *Revocations) SetUnread(d time.Duration) { r.unread = d }
