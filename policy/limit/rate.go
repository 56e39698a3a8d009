package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	xrate "golang.org/x/time/rate"
)

// Rate is how much a bucket gives: Count calls in every Per, Burst at once.
type Rate struct {
	Count int           // more than 0
	Per   time.Duration // more than 0
	Burst int           // size of the bucket; 0 = Count
}

// ParseRate reads "60/1m": a count above zero, a slash, and a duration above
// zero with a unit. Burst is left at 0, which means the count.
func ParseRate(s string) (Rate, error) {
	count, per, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, fmt.Errorf("rate %q is not of the form count/duration (hint: 60/1m)", s)
	}
	n, err := strconv.ParseUint(count, 10, 31)
	if err != nil || n == 0 || count[0] == '+' {
		return Rate{}, fmt.Errorf("rate %q has no whole count above zero (hint: 60/1m)", s)
	}
	d, err := time.ParseDuration(per)
	if err != nil || d <= 0 {
		return Rate{}, fmt.Errorf("rate %q has no duration above zero (hint: 60/1m)", s)
	}
	return Rate{Count: int(n), Per: d}, nil
}

// String gives the form that ParseRate reads, without the burst.
func (r Rate) String() string {
	return strconv.Itoa(r.Count) + "/" + shortDuration(r.Per)
}

// shortDuration drops the zero parts that time.Duration prints: 1m0s is 1m.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}

func (r Rate) valid() bool { return r.Count > 0 && r.Per > 0 && r.Burst >= 0 }

func (r Rate) burst() int {
	if r.Burst > 0 {
		return r.Burst
	}
	return r.Count
}

func (r Rate) limit() xrate.Limit {
	return xrate.Limit(float64(r.Count) / r.Per.Seconds())
}
