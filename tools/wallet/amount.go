package wallet

import (
	"fmt"
	"regexp"

	"github.com/cockroachdb/apd/v3"
)

// exact computes without rounding; a result beyond its precision is an error.
var exact = func() *apd.Context {
	c := apd.BaseContext.WithPrecision(100)
	c.Traps = apd.DefaultTraps | apd.Inexact | apd.Rounded
	return c
}()

// The bounds of an amount, far below the precision of exact, so that sums are exact.
const (
	maxWhole    = 30 // digits before the point
	maxDecimals = 18 // digits after the point
)

var number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)

// ErrAmount is returned for an invalid amount: not a JSON number, not above zero, or
// with more than 30 digits before or 18 digits after the point.
var ErrAmount error = Refusal("bad amount")

// parseAmount reads the lexeme of a JSON number, exactly.
func parseAmount(lexeme string) (*apd.Decimal, error) {
	if len(lexeme) > 100 || !number.MatchString(lexeme) {
		return nil, fmt.Errorf("%w: %.40q is not a number", ErrAmount, lexeme)
	}
	d, _, err := exact.NewFromString(lexeme)
	if err != nil {
		return nil, fmt.Errorf("%w: reading %.40q: %w", ErrAmount, lexeme, err)
	}
	if d.Sign() <= 0 {
		return nil, fmt.Errorf("%w: %.40q is not above zero", ErrAmount, lexeme)
	}
	d.Reduce(d)
	if d.Exponent < -maxDecimals || d.NumDigits()+int64(d.Exponent) > maxWhole {
		return nil, fmt.Errorf("%w: %.40q has more than %d digits before the point or %d behind it", ErrAmount, lexeme, maxWhole, maxDecimals)
	}
	return d, nil
}

// stored reads an amount of the ledger, which may be negative.
func stored(text string) (*apd.Decimal, error) {
	d, _, err := exact.NewFromString(text)
	if err != nil {
		return nil, fmt.Errorf("reading amount %q: %w", text, err)
	}
	return d, nil
}

// plain writes d without an exponent and without trailing zeros.
func plain(d *apd.Decimal) string {
	var r apd.Decimal
	r.Reduce(d)
	return r.Text('f')
}
