package trail

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/audit"
)

// TestOCSF holds that every kind of record has the members that OCSF 1.3.0 requires of API
// Activity (6003) and Authentication (3002), and of the objects in them, and that its
// status says whether it failed.
func TestOCSF(t *testing.T) {
	event := func(name, source, reason string) *audit.Record {
		return &audit.Record{Kind: audit.KindEvent, Event: &audit.Event{Name: name, Source: source, Reason: reason}}
	}
	for _, tt := range []struct {
		name         string
		record       *audit.Record
		class, kind  float64 // class_uid, activity_id
		source       string
		status, code float64 // status_id, api.response.code
	}{
		{"a call", &audit.Record{Kind: audit.KindOutcome, Exposed: "web__search", Server: "web", Transport: "http", DecisionID: "dec_1", Outcome: audit.Allowed, Principal: audit.Principal{Subject: "ann", Roles: []string{"r"}}}, 6003, 99, "name", 1, 0},
		{"a refused call", &audit.Record{Kind: audit.KindOutcome, Exposed: "x", Outcome: audit.Denied, Code: "T5_IDENTITY_VIOLATION"}, 6003, 99, "name", 2, 1},
		{"a method", &audit.Record{Kind: audit.KindDecision, Method: "prompts/get"}, 6003, 99, "name", 1, 0},
		{"the first record", &audit.Record{Kind: audit.KindOpen}, 6003, 99, "name", 1, 0},
		{"a ticket", &audit.Record{Kind: audit.KindTicket, Change: &audit.Change{To: "proposed"}}, 6003, 99, "name", 1, 0},
		{"sign-in", event(audit.EventSignIn, "192.0.2.1", ""), 3002, 1, "ip", 1, 0},
		{"a refused sign-in", event(audit.EventSignInRefused, "2001:db8::1", "UNAUTHENTICATED"), 3002, 1, "ip", 2, 0},
		{"sign-out", event(audit.EventSignOut, "192.0.2.1", ""), 3002, 2, "ip", 1, 0},
		{"a folded record", event(audit.EventCredentialRefused, "others", "unknown"), 6003, 99, "name", 2, 1},
		{"a server", event(audit.EventConfined, "", "whole"), 6003, 99, "name", 1, 0},
		{"reading", event(audit.EventTrailRead, "", ""), 6003, 99, "name", 1, 0},
		{"a refused profile", event(audit.EventProfile, "192.0.2.1", "NOT_PROFILER"), 6003, 99, "ip", 2, 1},
		{"a refused restart", event(audit.EventRestarted, "192.0.2.1", "NOT_OPERATOR"), 6003, 99, "ip", 2, 1},
		{"a refused stop", event(audit.EventStopped, "192.0.2.1", "NOT_STOPPER"), 6003, 99, "ip", 2, 1},
		{"a refused end of a session", event(audit.EventSessionEnded, "192.0.2.1", "NOT_OPERATOR"), 6003, 99, "ip", 2, 1},
		{"a refused acceptance", event(audit.EventAccepted, "192.0.2.1", "NOT_ACCEPTER"), 6003, 99, "ip", 2, 1},
		{"a definition that is not accepted", &audit.Record{Kind: audit.KindEvent, Event: &audit.Event{Name: audit.EventNotAccepted, Source: "192.0.2.1", Reason: "too much", Removed: []string{"a sha256:1"}}}, 6003, 99, "ip", 1, 0},
		{"a revoked token", &audit.Record{Kind: audit.KindEvent, Event: &audit.Event{Name: audit.EventRevoked, Source: "192.0.2.1", Reason: "lost", Removed: []string{"token a 1"}}}, 6003, 99, "ip", 1, 0},
		{"refused reading", event(audit.EventTrailRead, "192.0.2.1", "NOT_AUDITOR"), 6003, 99, "ip", 2, 1},
	} {
		tt.record.Time, tt.record.Hash = time.UnixMilli(1_800_000_000_123), strings.Repeat("0a", 32)
		text, err := json.Marshal(ocsfEvent(Row{tt.record}))
		var got map[string]any
		if err == nil {
			err = json.Unmarshal(text, &got)
		}
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]any{
			"class_uid": tt.class, "category_uid": float64(int(tt.class) / 1000), "activity_id": tt.kind, "type_uid": tt.class*100 + tt.kind, "time": 1_800_000_000_123.0,
			"status_id": tt.status, "metadata.version": "1.3.0", "metadata.product.vendor_name": "toolgate", "metadata.product.name": "toolgate",
		}
		texts := []string{"activity_name", "actor.user.name", "src_endpoint." + tt.source}
		if tt.class == 6003 {
			want["api.response.code"] = tt.code
			texts = append(texts, "api.operation", "api.service.name", "api.request.uid")
		} else {
			texts = append(texts, "user.name", "service.name")
		}
		for path, value := range want {
			if member(got, path) != value {
				t.Errorf("%s: %s is %v, want %v", tt.name, path, member(got, path), value)
			}
		}
		for _, path := range texts {
			if s, _ := member(got, path).(string); s == "" {
				t.Errorf("%s: %s is missing", tt.name, path)
			}
		}
		if severity, _ := member(got, "severity_id").(float64); severity < 1 || severity > 6 {
			t.Errorf("%s: severity %v", tt.name, severity)
		}
	}
}

func member(v any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		object, _ := v.(map[string]any)
		v = object[name]
	}
	return v
}
