package eventlog_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/share"
	"github.com/toolgate/toolgate/proxy/eventlog"
)

// A client that lost its connection shows the ID of the last event that it has had.
func Example() {
	log := eventlog.New(eventlog.Options{Now: time.Now, Crowded: func() {}, Slow: func(share.Owner) {}})
	streams := eventlog.Streams{Owner: share.Owner{Subject: "agent-7"}, Prime: true}
	rd := log.Open(&streams, true, nil)
	rd.Begin()
	rd.Stream.Send([]byte("progress"))
	last, _, _, _ := rd.Read() // without data: only its ID
	rd.Detach()                // the connection is lost
	rd.Stream.Finish(func() []byte { return []byte("answer") })

	rd, ok := log.Resume(&streams, []string{last})
	fmt.Println(ok)
	for {
		_, message, ok, over := rd.Read()
		if !ok {
			fmt.Println(over)
			return
		}
		fmt.Println(string(message))
	}
	// Output:
	// true
	// progress
	// answer
	// true
}

// Whatever is kept, it is read back as it was written, or not at all.
func FuzzKept(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00\x00\x00\x011{}"))
	f.Add([]byte("\x00\x00\x00\x00\x00\x00\x00\x00\x05\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if again, ok := eventlog.RereadEvent(data); ok && string(again) != string(data) {
			t.Errorf("event %q becomes %q", data, again)
		}
	})
}
