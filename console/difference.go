package console

import "fmt"

// A table shows arguments value by value and, where an earlier call exists, how
// they differ from its arguments.
type table struct {
	Rows    []row
	Missing int  // values that the table does not show, for their number
	Broken  bool // the bytes are no JSON: there are no rows

	// Only with an earlier call: how many values are otherwise, the same, only in
	// this call and only in the earlier one.
	Compared                    bool
	Changed, Same, Added, Taken int
}

// Differs says how many values differ, "" when none does.
func (t table) Differs() string {
	n := t.Changed + t.Added + t.Taken
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %s", n, count(n+t.Same, "value", "values"))
}

// compared returns the table of arguments, compared with those of an earlier
// call unless earlier is nil. Values are equal when they are written alike: 1.0
// differs from 1, as it does for the digest.
func compared(arguments, earlier []byte) (t table) {
	now, err := leaves(arguments)
	if err != nil {
		return table{Broken: true}
	}
	before, err := leaves(earlier)
	t.Compared = earlier != nil && err == nil
	was := make(map[string]string, len(before))
	for _, l := range before {
		was[l.pointer] = l.lexeme
	}
	for _, l := range now {
		old, there := was[l.pointer]
		delete(was, l.pointer)
		r := row{Pointer: textOf(Visible(l.pointer)), value: valueOf(l.lexeme)}
		switch {
		case !t.Compared:
		case !there:
			r.IsNew = true
			t.Added++
		case old != l.lexeme:
			v := valueOf(old)
			r.Was = &v
			t.Changed++
		default:
			t.Same++
		}
		t.Rows = append(t.Rows, r)
	}
	for _, l := range before {
		if old, left := was[l.pointer]; left && t.Compared {
			v := valueOf(old)
			t.Rows = append(t.Rows, row{Pointer: textOf(Visible(l.pointer)), Was: &v, IsGone: true})
			t.Taken++
			delete(was, l.pointer)
		}
	}
	if len(t.Rows) > maxRows {
		t.Missing = len(t.Rows) - maxRows
		t.Rows = t.Rows[:maxRows]
	}
	return t
}
