package jsonrpc

import "fmt"

// number reads a number and holds it to the gate: exact arithmetic on a number
// with a huge exponent costs time without bound.
func (s *scanner) number() *Fault {
	start := s.pos
	end, digits, exponent, ok := endOfNumber(s.data, start)
	s.pos = end
	if !ok {
		return s.hard(Parse, "malformed number")
	}
	if digits > s.lim.Digits {
		s.refuse(start, fmt.Sprintf("number with more than %d digits", s.lim.Digits))
	}
	if exponent > s.lim.Exponent {
		s.refuse(start, fmt.Sprintf("number with an exponent beyond %d", s.lim.Exponent))
	}
	return nil
}

// endOfNumber measures the number at data[i] (RFC 8259 §6): digits before the
// exponent, and the absolute value of the exponent, capped.
func endOfNumber(data []byte, i int) (end, digits, exponent int, ok bool) {
	at := func(c byte) bool { return i < len(data) && data[i] == c }
	run := func() int {
		start := i
		for i < len(data) && '0' <= data[i] && data[i] <= '9' {
			i++
		}
		return i - start
	}
	if at('-') {
		i++
	}
	zero := at('0')
	digits = run()
	if digits == 0 || zero && digits > 1 {
		return i, 0, 0, false
	}
	if at('.') {
		i++
		n := run()
		if n == 0 {
			return i, 0, 0, false
		}
		digits += n
	}
	if !at('e') && !at('E') {
		return i, digits, 0, true
	}
	i++
	if at('+') || at('-') {
		i++
	}
	start := i
	if run() == 0 {
		return i, 0, 0, false
	}
	return i, digits, small(data[start:i]), true
}

// small is the value of decimal digits, or a very large one.
func small(digits []byte) int {
	n := 0
	for _, c := range digits {
		if n = n*10 + int(c-'0'); n > 1<<24 {
			return 1 << 30
		}
	}
	return n
}
