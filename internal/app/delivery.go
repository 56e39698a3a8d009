package app

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// undeliveredNotices warns of notices that no channel has delivered.
func (a *App) undeliveredNotices() (warnings []string) {
	const where = "toolgate.approvals.notify: "
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	troubles, err := a.state.notices.Troubles(ctx)
	if err != nil {
		return []string{where + "whether notices were delivered cannot be read"}
	}
	for _, t := range troubles {
		name := t.Channel
		if name == "" {
			name = "a channel that is no longer configured"
		}
		var what []string
		if t.Waiting > 0 {
			what = append(what, fmt.Sprintf("%d not delivered yet", t.Waiting))
		}
		if t.Dead > 0 {
			what = append(what, fmt.Sprintf("%d given up in the last week", t.Dead))
		}
		warnings = append(warnings, fmt.Sprintf("%s%s: notices: %s; the latest, of ticket %s: %s", where, name, strings.Join(what, ", "), t.Ticket, t.Fault))
	}
	return warnings
}

// unsentDecisions warns of decisions that no sink has accepted.
func (a *App) unsentDecisions() (warnings []string) {
	const where = "toolgate.policy.log."
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	bound := a.Config().Policy.Log.MaxLag
	troubles, err := a.state.decisions.Troubles(ctx)
	if err != nil {
		return []string{"toolgate.policy.log: whether decisions were told cannot be read"}
	}
	for _, t := range troubles {
		var what []string
		if t.Fault != "" {
			what = append(what, fmt.Sprintf("not told, the trail is %d records ahead: %s", t.Lag, t.Fault))
		}
		if age := time.Since(t.Since); t.Fault == "" && !t.Since.IsZero() && age > bound {
			what = append(what, fmt.Sprintf("the oldest that is not told is %s old, the trail is %d records ahead", age.Round(time.Second), t.Lag))
		}
		if t.Parked > 0 {
			what = append(what, fmt.Sprintf("%d refused in the last week; the latest, %s: %s", t.Parked, t.Decision, t.Refusal))
		}
		if len(what) > 0 {
			warnings = append(warnings, where+sinkKeys[t.Sink]+": decisions: "+strings.Join(what, "; "))
		}
	}
	return warnings
}

// sinkKeys are the keys that configure sinks.
var sinkKeys = map[string]string{"file": "file", "http": "url"}
