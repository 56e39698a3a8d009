package limit

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	xrate "golang.org/x/time/rate"
)

// Rate is the refill of a bucket: Count calls in every Per, Burst at once.
type Rate struct {
	Count int           // more than 0
	Per   time.Duration // more than 0
	Burst int           // size of the bucket; 0 = Count
}

// ParseRate parses COUNT/DURATION, for example "60/1m": a whole count and a
// duration with a unit, both above zero. Burst is left at 0, which means the
// count. An error carries a hint.
func ParseRate(s string) (Rate, error) {
	count, per, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(count, 10, 31)
	d, perErr := time.ParseDuration(per)
	if err != nil || n == 0 || count[0] == '+' || perErr != nil || d <= 0 {
		return Rate{}, fmt.Errorf("invalid rate %q\nhint: write COUNT/DURATION, for example 60/1m", s)
	}
	return Rate{Count: int(n), Per: d}, nil
}

// String returns the form that ParseRate parses, without the burst.
func (r Rate) String() string {
	return strconv.Itoa(r.Count) + "/" + shortDuration(r.Per)
}

// shortDuration formats d without trailing zero units: 1m rather than 1m0s.
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
