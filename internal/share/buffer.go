package share

import "math/bits"

// Sizes of the buffers that are used again, in bytes, and the number of different sizes.
const (
	minBuffer   = 512
	maxBuffer   = 8 << 20
	bufferSizes = 57
)

// A buffer has the bytes of one answer. It is used again when the answer was delivered and nothing
// else refers to it.
type buffer struct {
	room                    []byte
	relinquished, delivered bool
}

// Buffer returns n bytes to read an answer into, with a capacity of n+spare or more. They may hold
// another answer: the caller overwrites them, and uses none that it has not read. They are used again
// after Relinquish, Delivered and the last Release, and are garbage when one of the three is missing.
func (c *Claim) Buffer(n, spare int) []byte {
	if c == nil || c.budget == nil || n < minBuffer || n+spare > maxBuffer {
		return make([]byte, n, n+spare)
	}
	size, i := bufferSize(n + spare)
	b, _ := c.budget.buffers[i].Get().(*buffer)
	if b == nil {
		b = &buffer{room: make([]byte, size)}
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.buffer = b
	return b.room[:n]
}

// bufferSize returns the smallest size of a buffer for n bytes, and the index of that size. n is from
// minBuffer to maxBuffer. There are four sizes from each power of two to the next.
func bufferSize(n int) (size, i int) {
	shift := bits.Len(uint(n-1)) - 3 //nolint:gosec // n is positive
	quarters := (n-1)>>shift + 1     // from 5 to 8
	return quarters << shift, 4*(shift-bits.Len(minBuffer-1)+3) + quarters - 8
}

// Relinquish says that nothing but the reply refers to the bytes of Buffer any more.
func (c *Claim) Relinquish() {
	if c == nil || c.budget == nil {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if c.buffer != nil {
		c.buffer.relinquished = true
	}
}

// Delivered says that the reply, which ended the call, was written to the client and is not kept.
func (c *Claim) Delivered() {
	if c == nil || c.budget == nil {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if c.buffer != nil {
		c.buffer.delivered = true
	}
}
