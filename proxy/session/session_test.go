package session_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
)

func of(all session.Sessions) *session.Session {
	return all.Of(session.Owner{Session: "s-1", Subject: "agent-7"})
}

// A task is the session's until it expires, and its id is taken for as long; a question's task is
// found with its server only.
func TestTasks(t *testing.T) {
	s, now := of(session.New()), time.Now()
	mine := &session.Task{ID: "t-1", Server: "files", Expires: now.Add(time.Hour)}
	asked := &session.Task{ID: "t-1", Server: "odd", Asks: "sampling/createMessage", Expires: now.Add(time.Hour)}
	if !s.Keep(mine, now) || s.Keep(&session.Task{ID: "t-1", Server: "odd"}, now) || !s.Keep(asked, now) {
		t.Error("an id is taken once by calls, and once by the questions of each server")
	}
	if s.Task("", "t-1", now) != mine || s.Task("odd", "t-1", now) != asked || s.Task("files", "t-1", now) != nil {
		t.Error("a task is found under another name than its own")
	}
	if got := s.Asker("", "t-1", now) + s.Asker("files", "t-1", now); got != "odd" {
		t.Errorf("asked by %q, want odd", got)
	}
	later := now.Add(2 * time.Hour)
	if s.Task("", "t-1", later) != nil || s.Asker("", "t-1", later) != "" || !s.Keep(&session.Task{ID: "t-1", Expires: later.Add(1)}, later) {
		t.Error("an expired task is still there")
	}
}

// What was decided on a question stays, and a task that asks without end is not remembered whole.
func TestVerdicts(t *testing.T) {
	s, task := of(session.New()), &session.Task{ID: "t-1"}
	kept := 0
	for i := range 1000 {
		if s.SetVerdict(task, strconv.Itoa(i), session.Verdict{Allowed: true}) {
			kept++
		}
	}
	if _, known := s.Verdict(task, "999"); kept != 100 || known || !s.SetVerdict(task, "0", session.Verdict{}) {
		t.Errorf("%d questions are remembered, want 100", kept)
	}
	if v, known := s.Verdict(task, "0"); v.Allowed || !known {
		t.Error("a later verdict does not count")
	}
}

// The first configured server that lists something has it; a link takes nothing from it, and a
// template describes what nothing else names.
func TestPlaces(t *testing.T) {
	all := session.New()
	s := of(all)
	s.Put(session.Resource, registry.Offer{Server: "second", Order: 2}, "file:///a")
	s.Put(session.Resource, registry.Offer{Server: "first", Order: 1}, "file:///a")
	s.Put(session.Resource, registry.Offer{Server: "third", Order: 3}, "file:///a")
	s.Put(session.Prompt, registry.Offer{Server: "first", Prefix: "f__"}, "sum")
	s.Put(session.Template, registry.Offer{Server: "second", Order: 2}, "file:///{name}")
	s.Link("file:///a", "odd")
	s.Link("file:///b", "odd")
	s.Link("file:///"+strings.Repeat("c", 3000), "odd")
	s.Subscribe("resources/subscribe", "file:///d", "third")
	for name, want := range map[string]string{"file:///a": "first", "file:///b": "odd", "file:///c": "second"} {
		if at, ok := s.Find(name, session.Resource, session.Template); !ok || at.Server != want {
			t.Errorf("%s is at %q, want %q", name, at.Server, want)
		}
	}
	if _, ok := s.Linked("file:///" + strings.Repeat("c", 3000)); ok {
		t.Error("a link of 3,000 bytes is kept")
	}
	if at, _ := s.Find("f__sum", session.Prompt); at.Name != "sum" {
		t.Errorf("the server's own name is %q", at.Name)
	}
	all.Unlist()
	_, listed := s.Find("file:///a", session.Template)
	if _, begun := s.Find("file:///d", session.Subscription); listed || !begun {
		t.Error("a changed list ends places, and no subscription")
	}
	s.Subscribe("resources/unsubscribe", "file:///d", "third")
	if _, ok := s.Find("file:///d", session.Subscription); ok {
		t.Error("a subscription that has ended is still there")
	}
	all.End("s-1")
	if _, ok := of(all).Linked("file:///b"); ok {
		t.Error("a session that is over remembers links")
	}
}

// Lists are read once, and again when one has changed or some time has passed.
func TestLook(t *testing.T) {
	s, now, reads := of(session.New()), time.Now(), 0
	look := func(at time.Time) bool { return s.Look(at, func() { reads++ }) }
	if !look(now) || look(now.Add(time.Second)) || !look(now.Add(time.Minute)) {
		t.Error("lists are read too often, or not at all")
	}
	s.Unlist()
	if !look(now.Add(time.Minute)) || reads != 3 {
		t.Errorf("%d reads, want 3", reads)
	}
}
