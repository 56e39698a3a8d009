package upstream_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/toolgate/toolgate/registry/upstream"
)

// A server is read no faster than its client reads, for two seconds. Then the oldest
// progress is dropped, counted and logged once, and the newest is kept.
func TestBurst(t *testing.T) {
	const burst, depth = 600, 256
	stuck := time.Hour
	all := func(from, to int) (out []string) {
		for i := from; i < to; i++ {
			out = append(out, fmt.Sprintf(`{"progress":%d}`, i))
		}
		return out
	}
	notes := slices.Repeat([]string{"note"}, burst)
	for _, tc := range []struct {
		name    string
		each    time.Duration // that the client needs for one message
		says    []string
		want    []string
		dropped int
		took    time.Duration // that the server needed to say all
	}{
		{name: "a client that reads", says: all(0, burst), want: all(0, burst)},
		{name: "a slow client", each: 5 * time.Millisecond, says: all(0, burst), want: all(0, burst), took: (burst - depth - 1) * 5 * time.Millisecond},
		{name: "a client that does not read", each: stuck, says: all(0, burst), want: slices.Concat(all(0, 1), all(burst-depth, burst)), dropped: burst - depth - 1, took: 2 * time.Second},
		{
			name: "progress before other notifications", each: stuck, says: slices.Concat(all(0, 3), notes),
			want: slices.Concat(all(0, 1), all(2, 3), notes[:depth-1]), dropped: burst + 3 - depth - 1, took: 2 * time.Second,
		},
		{
			name: "progress after other notifications", each: stuck, says: slices.Concat(notes, all(0, 3)),
			want: slices.Concat(notes[:depth], all(2, 3)), dropped: burst + 3 - depth - 1, took: 2 * time.Second,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var heard []string
				var log bytes.Buffer
				dropped, took := 0, time.Duration(0)
				hear := func(what string) {
					time.Sleep(tc.each)
					heard = append(heard, what)
				}
				opts := upstream.Options{Logger: hclog.New(&hclog.LoggerOptions{Output: &log}), Crowded: func() { dropped++ }}
				peer := heardBy(func(string, json.RawMessage) { hear("note") })
				e := upstream.DoFor(peer, opts, func(p json.RawMessage) { hear(string(p)) }, 1000*stuck, 1000*stuck, func(line []byte, say func(string)) {
					var msg struct{ ID string }
					if err := json.Unmarshal(line, &msg); err != nil {
						t.Error(err)
					}
					go func() {
						begun := time.Now()
						for _, what := range tc.says {
							if what == "note" {
								say(`{"jsonrpc":"2.0","method":"notifications/message","params":{}}`)
							} else {
								say(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"` + msg.ID + `",` + what[1:] + `}`)
							}
						}
						say(`{"jsonrpc":"2.0","id":"` + msg.ID + `","result":{}}`)
						took = time.Since(begun)
					}()
				})
				synctest.Wait() // the server has said everything
				if e != nil || !slices.Equal(heard, tc.want) {
					t.Errorf("error %v; heard %d messages:\n%q\nwant %d:\n%q", e, len(heard), heard, len(tc.want), tc.want)
				}
				if dropped != tc.dropped || took != tc.took || strings.Count(log.String(), "too slow") != min(tc.dropped, 1) {
					t.Errorf("%d dropped and the server took %v, want %d and %v; log:\n%s", dropped, took, tc.dropped, tc.took, log.String())
				}
			})
		})
	}
}

// heardBy is a peer that only hears.
type heardBy func(method string, params json.RawMessage)

// Ask implements upstream.Peer.
func (heardBy) Ask(context.Context, []upstream.Question) []upstream.Answer { return nil }

// Tell implements upstream.Peer.
func (h heardBy) Tell(method string, params json.RawMessage) { h(method, params) }
