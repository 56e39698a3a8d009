package conversation_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/conversation"
)

var errOver = errors.New("over")

// echo says every line again after a notification, and ends with errOver.
func echo(_ context.Context, in io.Reader, out io.Writer) error {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if _, err := fmt.Fprintf(out, "{\"method\":\"notifications/x\"}\n%s\n", lines.Text()); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, "bye"); err != nil {
		return err
	}
	return errOver
}

func TestLine(t *testing.T) {
	l := conversation.Dial(t, echo)
	if got := l.Ask("a"); got != `{"method":"notifications/x"}` {
		t.Errorf("got %s", got)
	}
	if got := l.Receive(); got != "a" {
		t.Errorf("got %s", got)
	}
	l.Send("b")
	if got := l.Answer(); got != "{\"method\":\"notifications/x\"}\nb\n" {
		t.Errorf("got %s", got)
	}
	l.HangUp()
	if rest, err := l.End(); rest != "bye" || !errors.Is(err, errOver) {
		t.Errorf("ended with %q, %v", rest, err)
	}
}
