package bridge

// ReadLines gives the messages of one JSON text as lines.
func ReadLines(data []byte) (lines []string, ok bool) {
	all, ok := readMessages(data)
	for _, m := range all {
		lines = append(lines, string(m.line))
	}
	return lines, ok
}
