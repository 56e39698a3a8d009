package notice

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/toolgate/toolgate/internal/text"
)

// renderer returns the function that renders a notice in a format.
func renderer(f Format) (func(*notice) ([]byte, error), error) {
	switch f {
	case JSON:
		return func(n *notice) ([]byte, error) { return n.body, nil }, nil
	case Slack:
		return chat(slack), nil
	case Teams:
		return chat(teams), nil
	}
	return nil, fmt.Errorf("%q is no format", f)
}

func chat(message func(Body) any) func(*notice) ([]byte, error) {
	return func(n *notice) ([]byte, error) {
		b, err := n.read()
		if err != nil {
			return nil, err
		}
		return json.Marshal(message(b))
	}
}

// open returns the text of the link.
func (b Body) open() string {
	switch b.Type {
	case Requested:
		return "Read it and decide"
	case Changed:
		return "See the tools"
	}
	return "See the ticket"
}

type jsonObject = map[string]any

// slack returns a message of Slack's Block Kit. Texts of others are plain_text, which
// has no links, mentions or markup; the notification's text is escaped as Slack
// requires.
func slack(b Body) any {
	const most = 10 // fields of one section
	var fields []jsonObject
	for _, l := range b.facts() {
		if len(fields) < most {
			fields = append(fields, jsonObject{"type": "plain_text", "emoji": false, "text": l.name + ": " + l.value})
		}
	}
	return jsonObject{
		"text": slackEscape.Replace(text.ClipRunes(b.title(), 300)),
		"blocks": []jsonObject{
			{"type": "header", "text": jsonObject{"type": "plain_text", "emoji": false, "text": text.ClipRunes(b.title(), 150)}},
			{"type": "section", "fields": fields},
			{"type": "section", "text": jsonObject{"type": "mrkdwn", "text": "<" + slackLink.Replace(b.Data.URL) + "|" + b.open() + ">"}},
		},
		"unfurl_links": false, "unfurl_media": false,
	}
}

var (
	slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	slackLink   = strings.NewReplacer("&", "&amp;", "<", "%3C", ">", "%3E", "|", "%7C")
)

// teams returns a message with an Adaptive Card. Texts of others are text runs, which
// have no Markdown.
func teams(b Body) any {
	run := func(text string, bold bool) jsonObject {
		weight := "Default"
		if bold {
			weight = "Bolder"
		}
		return jsonObject{"type": "TextRun", "text": text, "weight": weight}
	}
	body := []jsonObject{{"type": "RichTextBlock", "inlines": []jsonObject{run(b.title(), true)}}}
	for _, l := range b.facts() {
		body = append(body, jsonObject{"type": "RichTextBlock", "spacing": "Small", "inlines": []jsonObject{run(l.name+": ", true), run(l.value, false)}})
	}
	card := jsonObject{
		"$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
		"fallbackText": text.ClipRunes(b.title(), 150),
		"body":         body,
		"actions":      []jsonObject{{"type": "Action.OpenUrl", "title": b.open(), "url": b.Data.URL}},
	}
	return jsonObject{"type": "message", "attachments": []jsonObject{
		{"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": nil, "content": card},
	}}
}
