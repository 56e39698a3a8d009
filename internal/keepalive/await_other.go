//go:build !unix

package keepalive

// await sends the request. A connection cannot be examined here: a request that
// meets its closing fails.
func (c *conn) await() { c.write() }
