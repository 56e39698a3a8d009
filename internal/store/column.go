package store

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"
)

// JSON is a text column for the value that To points to: "" for null. It is both an
// argument of a statement and a destination of a row.
type JSON struct{ To any }

// Value returns the text.
func (c JSON) Value() (driver.Value, error) {
	text, err := json.Marshal(c.To)
	if string(text) == "null" {
		return "", err
	}
	return string(text), err
}

// Scan decodes a text; "" and NULL leave the value as it is.
func (c JSON) Scan(from any) error {
	if from == nil || from == "" {
		return nil
	}
	return json.Unmarshal(fmt.Appendf(nil, "%s", from), c.To)
}

// Time is an integer column for the time that To points to, in nanoseconds since
// 1970: 0 for the zero time. It is both an argument and a destination, like JSON.
type Time struct{ To *time.Time }

// Value returns the number.
func (c Time) Value() (driver.Value, error) {
	if c.To.IsZero() {
		return int64(0), nil
	}
	return c.To.UnixNano(), nil
}

// Scan decodes a number into a time in UTC.
func (c Time) Scan(from any) error {
	if n, ok := from.(int64); ok && n != 0 {
		*c.To = time.Unix(0, n).UTC()
	}
	return nil
}
