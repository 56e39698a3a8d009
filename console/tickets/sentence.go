package tickets

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/policy/approval"
)

const (
	// saidValues is how many arguments the plain sentence names, saidRunes how
	// long each may be. What it leaves out it counts.
	saidValues = 8
	saidRunes  = 64
)

// phrase is a part of a plain sentence: words of ours, or something of the
// ticket's, which the page sets apart so that it cannot pass for our words.
type phrase struct {
	Words string
	Name  string    // of a tool, a person, an argument
	Value page.Text // of an argument, as written
}

// sentence says in plain words what k asks for, and nothing that is not in k.
func sentence(k approval.Ticket) []phrase {
	s := []phrase{{Name: page.Visible(k.Principal.Subject)}, {Words: " asks to call "}, {Name: page.Visible(k.Exposed)}}
	if k.Server != "" {
		s = append(s, phrase{Words: " of server "}, phrase{Name: page.Visible(k.Server)})
	}
	return append(s, saidArguments(k)...)
}

func saidArguments(k approval.Ticket) (s []phrase) {
	found, err := leaves(k.Arguments)
	switch {
	case k.Arguments == nil && k.ArgumentBytes > 0 || err != nil:
		return []phrase{{Words: " with arguments of " + text.Count(k.ArgumentBytes, "byte")}}
	case len(found) == 1 && found[0].pointer == "" && found[0].lexeme == "{}":
		return []phrase{{Words: " without arguments"}}
	}
	left := 0
	for _, l := range found {
		name, nested := strings.CutPrefix(page.Visible(l.pointer), "/")
		shown := page.Visible(l.lexeme)
		if strings.Contains(name, "/") || len([]rune(shown)) > saidRunes || len(s) >= saidValues*4 || !nested {
			left++
			continue
		}
		join := ", "
		if len(s) == 0 {
			join = " with "
		}
		s = append(s, phrase{Words: join}, phrase{Name: name}, phrase{Words: " "}, phrase{Value: page.TextOf(shown)})
	}
	switch {
	case left > 0 && len(s) == 0:
		s = append(s, phrase{Words: fmt.Sprintf(" with %s", text.Count(left, "value"))})
	case left > 0:
		s = append(s, phrase{Words: fmt.Sprintf(" and %s", text.Count(left, "more value"))})
	}
	return s
}

// effect says in plain words what an approval of k leads to, and what k was when
// it is decided; the arguments follow it.
func effect(k approval.Ticket) []phrase {
	s := []phrase{{Words: "Call "}, {Name: page.Visible(k.Exposed)}}
	if k.State != approval.StateProposed {
		s[0].Words = "The call of "
	}
	if k.Server != "" {
		s = append(s, phrase{Words: " of server "}, phrase{Name: page.Visible(k.Server)})
	}
	by := " once, for "
	if k.State != approval.StateProposed {
		by = " by "
	}
	return append(s, phrase{Words: by}, phrase{Name: page.Visible(k.Principal.Subject)}, phrase{Words: ", with exactly this:"})
}

// whenRun says when an approval makes k run.
func whenRun(k approval.Ticket) string {
	who := "Approved"
	if k.Quorum > 1 {
		who = fmt.Sprintf("Once %d people have approved it", k.Quorum)
	}
	if k.Execute {
		return who + ", it runs at once, also when the agent has gone."
	}
	return who + ", it runs at once if the agent still waits, else when it asks again."
}

// standings describe the states of a ticket; % is who decided.
var standings = map[approval.State]string{
	approval.StateProposed:        "waits for a decision",
	approval.StateApproved:        "approved by %, has not run yet",
	approval.StateNeedsConnection: "approved by %, has not run: its requester has to connect",
	approval.StateDenied:          "denied by %",
	approval.StateExpired:         "expired: nothing was sent",
	approval.StateSuperseded:      "superseded: nothing was sent",
	approval.StateDispatching:     "approved by %, running now",
	approval.StateDone:            "has run",
	approval.StateFailed:          "has failed",
	approval.StateUnknown:         "may or may not have run: somebody has to find out",
}

// describeState describes the state of k, and how its tool failed.
func describeState(k approval.Ticket) string {
	if k.ToolFailed() {
		return "ran; " + page.Visible(k.Note)
	}
	return strings.Replace(cmp.Or(standings[k.State], string(k.State)), "%", page.Visible(decidedBy(k)), 1)
}

// decidedBy names who decided k: everybody who approved it, where the votes are known.
func decidedBy(k approval.Ticket) string {
	var names []string
	for _, b := range k.Votes {
		if b.Approve && k.State != approval.StateDenied {
			names = append(names, b.Subject)
		}
	}
	return cmp.Or(strings.Join(names, " and "), k.DecidedBy)
}

// timeLeft returns the time from now to t, coarsely.
func timeLeft(now, t time.Time) string {
	switch d := t.Sub(now); {
	case d <= 0:
		return "over"
	case d < time.Minute:
		return text.Count(int(d/time.Second), "second") + " left"
	case d < 2*time.Hour:
		return text.Count(int(d/time.Minute), "minute") + " left"
	default:
		return text.Count(int(d/time.Hour), "hour") + " left"
	}
}
