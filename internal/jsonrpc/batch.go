package jsonrpc

import "fmt"

// IsBatch reports whether data, if it is JSON, is an array.
func IsBatch(data []byte) bool {
	for _, c := range data {
		if !space(c) {
			return c == '['
		}
	}
	return false
}

// Split takes a batch (JSON-RPC 2.0 §6, MCP 2025-03-26) apart in one strict
// pass. The elements are the bytes of data but for line ends between tokens,
// which become spaces, and do not alias it. Each is one well-formed value,
// nested no deeper than lim, and no more than that: Decode judges it. The error
// is always a *Fault, and then there are no elements: for what is no array, an
// empty one, and one of more than most elements.
func Split(data []byte, lim Limits, most int) ([][]byte, error) {
	lim = lim.orDefault()
	if len(data) > lim.Bytes {
		return nil, tooLarge(lim)
	}
	s := newScanner(data, lim)
	defer s.release()
	all, f := s.elements(most)
	if f != nil {
		return nil, f
	}
	return all, nil
}

// elements reads the one array that the scanner has.
func (s *scanner) elements(most int) ([][]byte, *Fault) {
	if s.next() != '[' {
		return nil, invalid("", "a batch must be an array").wanted("an array", "something else")
	}
	s.pos++
	if s.next() == ']' {
		s.pos++
		if f := s.end(); f != nil {
			return nil, f
		}
		return nil, invalid("", "a batch must not be empty").wanted("one message or more", "none")
	}
	var all [][]byte
	s.path = append(s.path, frame{index: -1})
	for more := true; more; {
		if len(all) == most {
			return nil, invalid("", fmt.Sprintf("a batch must not have more than %d messages", most))
		}
		element, last, f := s.element(len(all))
		if f != nil {
			return nil, f
		}
		all, more = append(all, element), !last
	}
	return all, s.end()
}

// element reads element i and what follows it.
func (s *scanner) element(i int) (raw []byte, last bool, f *Fault) {
	s.path[0] = frame{index: i}
	s.skip()
	start := s.pos
	if f := s.value(zoneFree, 0); f != nil {
		return nil, false, f
	}
	raw = s.data[start:s.pos:s.pos]
	switch s.next() {
	case ',':
		s.pos++
		return raw, false, nil
	case ']':
		s.pos++
		return raw, true, nil
	}
	return nil, false, s.hard(Parse, "expected a comma or the end of an array")
}

// end refuses bytes after the value.
func (s *scanner) end() *Fault {
	s.skip()
	if s.pos < len(s.data) {
		return s.hard(Parse, "more bytes after the message")
	}
	return nil
}
