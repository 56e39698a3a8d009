package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy/notice"
	"github.com/toolgate/toolgate/registry/config"
)

// openNotices makes the outbox ready to take notices. Nothing is sent yet.
func (in *instance) openNotices(cfg *config.Config) (err error) {
	in.notices, err = notice.New(notice.Options{
		DB: in.db, Link: in.ticketPage, Observe: in.metrics.observeNotice, Log: in.log.Named("notices"),
	}, noticeChannels(cfg))
	return err
}

// ticketPage is the address of the page of a ticket.
func (in *instance) ticketPage(id string) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return consoleURL(in.cfg) + "/console/approvals/" + id
}

func noticeChannels(cfg *config.Config) (channels []notice.Channel) {
	for _, n := range cfg.Approvals.Notify {
		channels = append(channels, notice.Channel{
			Webhook: n.Webhook, Secret: n.Secret, Format: notice.Format(n.Format),
			Email: n.Email, SMTP: n.SMTP, From: n.From, Roles: n.Roles,
		})
	}
	return channels
}

// notDelivered says what people were not told.
func (in *instance) notDelivered() (warnings []string) {
	const where = "toolgate.approvals.notify: "
	ctx, stop := context.WithTimeout(context.Background(), time.Second)
	defer stop()
	troubles, err := in.notices.Troubles(ctx)
	if err != nil {
		return []string{where + "whether notices were delivered cannot be read"}
	}
	for _, t := range troubles {
		name := t.Channel
		if name == "" {
			name = "a channel that is configured no more"
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

// unreachableLinks warns of links that lead nowhere for those who get them.
func unreachableLinks(cfg *config.Config) (found []finding) {
	if len(cfg.Approvals.Notify) > 0 && cfg.Console.URL == "" {
		found = append(found, warning("toolgate.approvals.notify", "links in notices lead to "+consoleURL(cfg)+", where only this machine may get to",
			"set toolgate.console.url to where people reach the pages"))
	}
	return found
}
