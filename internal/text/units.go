package text

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// maxBits is the width of an amount in the EVM.
const maxBits = 256

// decimalNumber is compiled when it is first used: its counted repeats make it large.
var decimalNumber = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(0|[1-9][0-9]{0,77})(?:\.([0-9]{1,77}))?(?:[eE]([+-]?[0-9]{1,2}))?$`)
})

// Units reads a decimal number, such as 0.10 or 1e2, as the number of the smallest units
// of an asset with decimals places. It is exact: a number with more places is an error, and
// so are one that is not above zero and one of more than 256 bits.
func Units(number string, decimals int) (*big.Int, error) {
	parts := decimalNumber().FindStringSubmatch(number)
	if parts == nil {
		return nil, fmt.Errorf("%.40q is not a decimal number above zero", number)
	}
	shift, _ := strconv.Atoi(parts[3]) // "" is 0
	shift += decimals - len(parts[2])
	digits := strings.TrimLeft(parts[1]+parts[2], "0")
	if shift < 0 {
		whole := strings.TrimRight(digits, "0")
		if len(digits)-len(whole) < -shift && digits != "" {
			return nil, fmt.Errorf("%.40q has more than %d decimals", number, decimals)
		}
		digits = digits[:max(0, len(digits)+shift)]
	} else if digits != "" {
		digits += strings.Repeat("0", shift)
	}
	units, ok := new(big.Int).SetString(digits, 10)
	switch {
	case !ok:
		return nil, fmt.Errorf("%.40q is not above zero", number)
	case units.BitLen() > maxBits:
		return nil, fmt.Errorf("%.40q is more than %d bits hold", number, maxBits)
	}
	return units, nil
}

// Decimal writes smallest units as a decimal number of the asset, without an exponent
// and without trailing zeros.
func Decimal(units *big.Int, decimals int) string {
	digits := units.String()
	if missing := decimals + 1 - len(digits); missing > 0 {
		digits = strings.Repeat("0", missing) + digits
	}
	point := len(digits) - decimals
	fraction := strings.TrimRight(digits[point:], "0")
	if fraction == "" {
		return digits[:point]
	}
	return digits[:point] + "." + fraction
}
