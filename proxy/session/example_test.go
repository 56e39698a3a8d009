package session_test

import (
	"fmt"
	"time"

	"github.com/toolgate/toolgate/proxy/session"
	"github.com/toolgate/toolgate/registry"
)

func Example() {
	sessions := session.New()
	s := sessions.Of(session.Owner{Session: "s-1", Subject: "agent-7"})
	s.Put(session.Resource, registry.Offer{Server: "files"}, "file:///readme")
	at, ok := s.Find("file:///readme", session.Resource)
	fmt.Println(at.Server, ok)

	now := time.Now()
	task := &session.Task{ID: "t-1", Server: "files", Expires: now.Add(time.Hour)}
	fmt.Println(s.Keep(task, now), s.Keep(&session.Task{ID: "t-1", Server: "odd", Expires: now}, now))

	other := sessions.Of(session.Owner{Session: "s-1", Subject: "somebody else"})
	fmt.Println(other.Task("", "t-1", now))
	// Output:
	// files true
	// true false
	// <nil>
}
