package notice

import (
	"encoding/json"
	"fmt"
	"strings"
)

// renderer gives what a format makes of a notice.
func renderer(f Format) (func(*parcel) ([]byte, error), error) {
	switch f {
	case JSON:
		return func(p *parcel) ([]byte, error) { return p.body, nil }, nil
	case Slack:
		return chat(slack), nil
	case Teams:
		return chat(teams), nil
	}
	return nil, fmt.Errorf("%q is no format", f)
}

func chat(message func(Body) any) func(*parcel) ([]byte, error) {
	return func(p *parcel) ([]byte, error) {
		b, err := p.read()
		if err != nil {
			return nil, err
		}
		return json.Marshal(message(b))
	}
}

// open is what the link to the page of a ticket is called.
func (b Body) open() string {
	if b.Type == Requested {
		return "Read it and decide"
	}
	return "See the ticket"
}

type object = map[string]any

// slack is a message of Slack's Block Kit. What others wrote stands in
// plain_text, which knows no links, mentions or markup; the notification's text
// is escaped as Slack wants it.
func slack(b Body) any {
	const most = 10 // fields of one section
	var fields []object
	for _, l := range b.lines() {
		if len(fields) < most {
			fields = append(fields, object{"type": "plain_text", "emoji": false, "text": l.name + ": " + l.value})
		}
	}
	return object{
		"text": slackEscape.Replace(head(b.title(), 300)),
		"blocks": []object{
			{"type": "header", "text": object{"type": "plain_text", "emoji": false, "text": head(b.title(), 150)}},
			{"type": "section", "fields": fields},
			{"type": "section", "text": object{"type": "mrkdwn", "text": "<" + slackLink.Replace(b.Data.URL) + "|" + b.open() + ">"}},
		},
		"unfurl_links": false, "unfurl_media": false,
	}
}

var (
	slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	slackLink   = strings.NewReplacer("&", "&amp;", "<", "%3C", ">", "%3E", "|", "%7C")
)

// head cuts s to at most n characters.
func head(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

// teams is a message with an Adaptive Card. What others wrote stands in runs of
// text, which know no Markdown.
func teams(b Body) any {
	run := func(text string, bold bool) object {
		weight := "Default"
		if bold {
			weight = "Bolder"
		}
		return object{"type": "TextRun", "text": text, "weight": weight}
	}
	body := []object{{"type": "RichTextBlock", "inlines": []object{run(b.title(), true)}}}
	for _, l := range b.lines() {
		body = append(body, object{"type": "RichTextBlock", "spacing": "Small", "inlines": []object{run(l.name+": ", true), run(l.value, false)}})
	}
	card := object{
		"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
		"fallbackText": head(b.title(), 150),
		"body":         body,
		"actions":      []object{{"type": "Action.OpenUrl", "title": b.open(), "url": b.Data.URL}},
	}
	return object{"type": "message", "attachments": []object{
		{"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": nil, "content": card},
	}}
}
