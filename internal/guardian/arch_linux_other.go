//go:build linux && !amd64 && !arm64

package guardian

// The filter is written for 64 bits and little endian. On other architectures it
// refuses every call, so that Try fails and no server is started with it.
const (
	arch    = 0
	foreign = 0
)
