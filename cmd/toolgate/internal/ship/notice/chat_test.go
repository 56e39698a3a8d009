package notice_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/policy/approval"
)

var update = flag.Bool("update", false, "write what is made to testdata")

// example is a notice with everything in it.
func example() notice.Body {
	created := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return notice.Body{Type: notice.Requested, Timestamp: created, Data: notice.Data{
		Ticket: "apr_1", State: approval.StateProposed, URL: "https://gate.example/console/approvals/apr_1",
		Requester: "agent-7", Tenant: "acme", Server: "standard", Tool: "manage_wallet", Rule: "threshold",
		Reason: "amount above 100", Roles: []string{"approver", "cfo"}, Quorum: 2, Created: created, Expires: created.Add(15 * time.Minute),
		RunsAs: &approval.Account{ID: "crd_1", Type: "oauth", Issuer: "https://as.example.org", Account: "ann@web\u202e", Scopes: []string{"read", "write"}},
	}}
}

func marshal(t testing.TB, b notice.Body) []byte {
	t.Helper()
	body, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// The messages are those of testdata, which people have looked at beside what
// Slack and Teams document.
func TestMessages(t *testing.T) {
	asked := example()
	decided := example()
	decided.Type, decided.Data.State, decided.Data.By, decided.Data.Because = notice.Decided, approval.StateDenied, "ann", "not today"
	decided.Data.Quorum, decided.Data.Approvals = 3, 1
	decided.Data.Each, decided.Data.Given = map[string]int{"approver": 2, "cfo": 1}, map[string]int{"approver": 1}
	failed := example()
	failed.Type, failed.Data.State, failed.Data.ToolError = notice.Ended, approval.StateDone, true
	changed := notice.Body{Type: notice.Changed, Timestamp: asked.Timestamp, Data: notice.Data{
		Server: "bank", Tool: "pay", Reason: "it differs first in description", URL: "https://gate.example/console/",
	}}
	for name, b := range map[string]notice.Body{"requested": asked, "decided": decided, "tool_error": failed, "changed": changed} {
		for _, f := range []notice.Format{notice.JSON, notice.Slack, notice.Teams} {
			if f == notice.JSON && b.Type == notice.Changed {
				continue // its data is a Definition
			}
			got, err := notice.Render(f, marshal(t, b))
			if err != nil {
				t.Fatal(err)
			}
			var pretty bytes.Buffer
			if err := json.Indent(&pretty, got, "", "  "); err != nil {
				t.Fatal(err)
			}
			pretty.WriteByte('\n')
			golden(t, name+"."+f+".json", pretty.Bytes())
		}
	}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s: got\n%s", name, got)
	}
}

// texts collects the strings of a message by the type of the object that they
// stand in, and its other members by key.
func texts(v any, found map[string][]string) {
	switch v := v.(type) {
	case map[string]any:
		kind, _ := v["type"].(string)
		for key, value := range v {
			if s, ok := value.(string); ok {
				if key == "text" {
					key = kind
				}
				found[key] = append(found[key], s)
				continue
			}
			texts(value, found)
		}
	case []any:
		for _, e := range v {
			texts(e, found)
		}
	}
}

// Whatever others wrote, a message is JSON, has one link, ours, and no markup,
// mention or line of theirs.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{
		"agent-7", "<!channel>", "<https://evil.example|Approve>", "[Approve](https://evil.example)", "a\r\nBcc: evil@example", "\u202eevil\u200b",
		"*bold* _it_ `code` ~no~ & <", "\xff\xfe", strings.Repeat("x", 4000), "", "\x00", "{{DATE(2026)}}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b := example()
		d := &b.Data
		d.Requester, d.Tool, d.Rule, d.Reason, d.By, d.Because, d.Tenant, d.Server, d.Roles = s, s, s, s, s, s, s, s, []string{s}
		body := marshal(t, b)
		for _, format := range []notice.Format{notice.Slack, notice.Teams} {
			message, err := notice.Render(format, body)
			if err != nil {
				t.Fatal(err)
			}
			var v map[string]any
			if err := json.Unmarshal(message, &v); err != nil {
				t.Fatal(err)
			}
			found := map[string][]string{}
			texts(v, found)
			checkTexts(t, format, found)
		}
	})
}

func checkTexts(t *testing.T, format notice.Format, found map[string][]string) {
	t.Helper()
	switch format {
	case notice.Slack:
		want := []string{"<https://gate.example/console/approvals/apr_1|Read it and decide>"}
		if !slices.Equal(found["mrkdwn"], want) {
			t.Errorf("links of Slack: %q", found["mrkdwn"])
		}
		// The notification is the only other text that Slack reads markup in.
		if notification := found[""]; len(notification) != 1 || strings.ContainsAny(notification[0], "<>") {
			t.Errorf("notification: %q", notification)
		}
	case notice.Teams:
		if !slices.Equal(found["url"], []string{"https://gate.example/console/approvals/apr_1"}) || len(found["TextBlock"])+len(found["FactSet"]) > 0 {
			t.Errorf("links of Teams: %q", found)
		}
	}
	for kind, list := range found {
		for _, s := range list {
			if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%s: %s has what nobody sees: %q", format, kind, s)
			}
			if len([]rune(s)) > 2000 && format == notice.Slack {
				t.Errorf("%s has %d characters", kind, len([]rune(s)))
			}
		}
	}
}
