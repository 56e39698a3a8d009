package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rate is Count calls in every Per, Burst of them at once.
type Rate struct {
	Count int           // at least 1
	Per   time.Duration // more than 0
	Burst int           // at least 1; the Count where none is configured
}

// errRate is the one cause of a refused rate.
var errRate = errors.New("not a rate of the form COUNT/DURATION")

// ParseRate reads COUNT/DURATION, such as "60/1m": a whole count of at least
// 1, and a duration above zero with a unit. Burst becomes the count.
func ParseRate(s string) (Rate, error) {
	count, per, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(count, 10, 31)
	d, _ := time.ParseDuration(per) // 0 for none
	if err != nil || count[0] == '0' || d <= 0 {
		return Rate{}, fmt.Errorf("reading %q: %w", s, errRate)
	}
	return Rate{Count: int(n), Per: d, Burst: int(n)}, nil
}
