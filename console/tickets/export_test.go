package tickets

import (
	"strings"

	"github.com/toolgate/toolgate/policy/approval"
)

// Leaf is a value of some arguments: pointer and lexeme.
type Leaf [2]string

// Leaves are the values of a JSON text.
func Leaves(text []byte) (out []Leaf, err error) {
	found, err := leaves(text)
	for _, l := range found {
		out = append(out, Leaf{l.pointer, l.lexeme})
	}
	return out, err
}

// Value is what the page shows of one value.
type Value struct {
	Text, Head, Tail, Reads string
	Notes                   []string
}

// ValueOf describes a lexeme.
func ValueOf(lexeme string) Value {
	v := valueOf(lexeme)
	return Value{Text: v.Text.String(), Head: v.Head.String(), Tail: v.Tail.String(), Reads: v.Reads, Notes: v.Notes}
}

// Compared is the table of arguments beside earlier ones, a row a line.
func Compared(arguments, earlier []byte) (rows []string, differs string) {
	t := compared(arguments, earlier)
	for _, r := range t.Rows {
		line := r.Pointer.String() + " " + r.Text.String()
		switch {
		case r.IsNew:
			line += " new"
		case r.IsGone:
			line += "gone, was " + r.Was.Text.String()
		case r.Was != nil:
			line += " was " + r.Was.Text.String()
		}
		rows = append(rows, line)
	}
	return rows, t.Differs()
}

// Sentence is what a list says of a ticket.
func Sentence(k approval.Ticket) string { return said(sentence(k)) }

// Effect is what its page says that an approval leads to.
func Effect(k approval.Ticket) string { return said(effect(k)) + " " + whenRun(k) }

func said(phrases []phrase) string {
	var b strings.Builder
	for _, p := range phrases {
		b.WriteString(p.Words + p.Name + p.Value.String())
	}
	return b.String()
}

// ResultOf is what is shown of a stored result.
func ResultOf(stored []byte) Result { return resultOf(stored) }
