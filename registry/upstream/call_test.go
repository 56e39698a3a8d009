package upstream_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/span"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry/upstream"
)

// delicate are arguments that a decode and encode anywhere on the way would
// change.
var delicate = []string{
	`{"n":9007199254740993}`,
	`{"n":1e2,"m":1E+2,"o":1.0,"p":-0}`,
	`{"b":1,"a":2,"10":3,"9":4}`,
	`{"s":"\u0041\/\u00e9"}`,
	`{"html":"<a href='x'>&amp;</a>"}`,
	"{\"ls\":\"\u2028\u2029\"}",
	`{"emoji":"👩‍👩‍👧‍👦 \ud83d\ude00"}`,
	`{ "spaced" :  [ 1 ,2,  3 ] ,"nested": { } }`,
	`{"id":"1","method":"tools/list","jsonrpc":"1.0"}`,
	`{}`,
}

// The bytes that were judged are the bytes that arrive, and the result comes
// back as it was sent.
func TestBytesArrive(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		for _, want := range delicate {
			result, e := r.call(prints, "echo", want)
			if e != nil {
				t.Fatalf("%s: %v", want, e)
			}
			calls := rec.Calls()
			last := calls[len(calls)-1]
			if !strings.Contains(string(last.Raw), `"arguments":`+want+`}}`) {
				t.Errorf("sent %s, received %s", want, last.Raw)
			}
			if back := `{"content":[],"structuredContent":` + want + `}`; string(result) != back {
				t.Errorf("result %s, want %s", result, back)
			}
		}
		if got := len(rec.Calls()); got != len(delicate) {
			t.Errorf("%d calls arrived, want %d", got, len(delicate))
		}
	})
}

// A result is known to be plain only where every character is seen; what an earlier call has
// found is not left.
func TestPlainResults(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}, {Name: "fail", Does: recorder.Fail, Error: json.RawMessage(`{"code":1,"message":"no"}`)}}},
		func(t *testing.T, rec *recorder.Recorder, r *running) {
			prints := r.ready()
			for arguments, want := range map[string]bool{
				`{"a":"seen ~ \n\t\r\"\\\/","b":[1.5,null]}`: true, `{"a":"\u0041"}`: false, `{"é":1}`: false, `{"a":"\b"}`: false, "{\"a\":\"\x7f\"}": false,
			} {
				plain := !want
				_, e := r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: prints["echo"], Arguments: json.RawMessage(arguments), Plain: &plain})
				if e != nil || plain != want {
					t.Errorf("%s: plain %t, %v", arguments, plain, e)
				}
			}
			plain := true
			if _, e := r.Do(context.Background(), upstream.Call{Tool: "fail", Fingerprint: prints["fail"], Arguments: json.RawMessage(`{}`), Plain: &plain}); e == nil || plain {
				t.Errorf("an error: plain %t, %v", plain, e)
			}
		})
}

// _meta is sent as it is, and a progress token is added without touching the
// rest of it.
func TestMeta(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		meta := `{"traceparent":"00-1","big":9007199254740993}`
		for _, progress := range []func(json.RawMessage){nil, func(json.RawMessage) {}} {
			_, e := r.Do(context.Background(), upstream.Call{
				Tool: "echo", Fingerprint: prints["echo"], Arguments: json.RawMessage(`{}`), Meta: json.RawMessage(meta), Progress: progress,
			})
			if e != nil {
				t.Fatal(e)
			}
		}
		calls := rec.Calls()
		if !strings.Contains(string(calls[0].Raw), `"_meta":`+meta+`}`) {
			t.Errorf("without progress: %s", calls[0].Raw)
		}
		if !strings.Contains(string(calls[1].Raw), `"_meta":{"traceparent":"00-1","big":9007199254740993,"progressToken":"`) {
			t.Errorf("with progress: %s", calls[1].Raw)
		}
	})
}

// A trace replaces the context of the caller, and no other member of _meta.
func TestTraceInMeta(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		const meta = `{"baggage":"k=v","traceparent":"00-1","tracestate":"a=1","big":9007199254740993}`
		for _, m := range []json.RawMessage{json.RawMessage(meta), nil} {
			if _, e := r.Do(context.Background(), upstream.Call{
				Tool: "echo", Fingerprint: prints["echo"], Arguments: json.RawMessage(`{}`), Meta: m, Trace: span.Carrier{"traceparent": "00-2"},
			}); e != nil {
				t.Fatal(e)
			}
		}
		for i, want := range []string{`"_meta":{"baggage":"k=v","traceparent":"00-2","big":9007199254740993}`, `"_meta":{"traceparent":"00-2"}`} {
			if got := string(rec.Calls()[i].Raw); !strings.Contains(got, want) {
				t.Errorf("sent %s, want %s", got, want)
			}
		}
	})
}

// An error object comes back byte for byte, members that nobody knows included.
func TestErrorObject(t *testing.T) {
	object := `{"code":-32042,"message":"<no>","data":{"n":9007199254740993},"extra":[1e2]}`
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "fail", Does: recorder.Fail, Error: json.RawMessage(object)}}}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		_, e := r.call(r.ready(), "fail", `{}`)
		wantError(t, e, upstream.Failed, true)
		if string(e.RPC) != object {
			t.Errorf("error object %s, want %s", e.RPC, object)
		}
	})
}

// What an upstream may do to a call, and what the call comes to.
func TestMisbehaviour(t *testing.T) {
	tools := []recorder.Tool{
		{Name: "hang", Does: recorder.Hang}, {Name: "both", Does: recorder.Both}, {Name: "twice", Does: recorder.Twice},
		{Name: "big", Does: recorder.Big, N: 2 << 20}, {Name: "garbage", Does: recorder.Garbage, N: 50},
		{Name: "flood", Does: recorder.Flood, N: 20_000}, {Name: "wrong", Does: recorder.WrongID}, {Name: "echo"},
	}
	for _, tc := range []struct {
		tool string
		kind upstream.ErrorKind // 0 = it works
		only []string
	}{
		{"hang", upstream.Timeout, nil},
		{"both", upstream.Failed, nil},
		{"twice", 0, nil},
		{"big", upstream.TooLarge, nil},
		{"garbage", 0, []string{"stdio", "http stream"}},
		{"flood", 0, []string{"stdio", "http stream"}},
		{"wrong", upstream.Timeout, []string{"stdio"}},
		{"wrong", upstream.Failed, []string{"http", "http stream"}},
	} {
		t.Run(tc.tool, func(t *testing.T) {
			overAll(t, recorder.Config{Tools: tools}, func(t *testing.T, rec *recorder.Recorder, r *running) {
				prints := r.ready()
				call := upstream.Call{Tool: tc.tool, Fingerprint: prints[tc.tool], Arguments: json.RawMessage(`{}`)}
				var e *upstream.Error
				if tc.kind == upstream.Timeout {
					e = r.timeOut(call)
				} else {
					_, e = r.Do(context.Background(), call)
				}
				if tc.kind != 0 {
					wantError(t, e, tc.kind, true)
				} else if e != nil {
					t.Fatal(e)
				}
				await(t, "the call arrives", func() bool { return len(rec.Calls()) > 0 })
				if got := len(rec.Calls()); got != 1 {
					t.Errorf("%d calls arrived, want 1", got)
				}
				// Whatever it did, the next call works.
				await(t, "next call works", func() bool {
					_, e := r.call(prints, "echo", `{"again":true}`)
					return e == nil
				})
			}, tc.only...)
		})
	}
}

// Many calls at once each get their own answer.
func TestConcurrentCalls(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		errs := make(chan string, 64)
		for i := range cap(errs) {
			go func() {
				arguments := `{"n":` + strings.Repeat("1", i+1) + `}`
				result, e := r.call(prints, "echo", arguments)
				switch {
				case e != nil:
					errs <- e.Error()
				case !strings.Contains(string(result), arguments):
					errs <- "answer of another call: " + string(result)
				default:
					errs <- ""
				}
			}()
		}
		for range cap(errs) {
			if err := <-errs; err != "" {
				t.Error(err)
			}
		}
	})
}

// Progress arrives in order, complete, without our token, and never after the
// call.
func TestProgress(t *testing.T) {
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "steps", Does: recorder.Steps, N: 20}}}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		var got []string
		_, e := r.Do(context.Background(), upstream.Call{
			Tool: "steps", Fingerprint: r.ready()["steps"], Arguments: json.RawMessage(`{}`),
			Progress: func(params json.RawMessage) { got = append(got, string(params)) },
		})
		if e != nil {
			t.Fatal(e)
		}
		var want []string
		for i := range 20 {
			n, _ := json.Marshal(i)
			want = append(want, `{"progress":`+string(n)+`,"big":9007199254740993}`)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	}, "stdio", "http stream")
}

// withdrawn is the cause of a call that its client gave up, for the reason that it holds.
type withdrawn string

// Error implements error.
func (withdrawn) Error() string { return "given up" }

// CancelReason is the client's reason.
func (w withdrawn) CancelReason() string { return string(w) }

// A call that is given up returns at once, and the upstream is told which, and why.
func TestCancel(t *testing.T) {
	cfg := recorder.Config{Tools: []recorder.Tool{{Name: "hang", Does: recorder.Hang}}}
	overAll(t, cfg, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		ctx, cancel := context.WithCancelCause(context.Background())
		done := make(chan *upstream.Error)
		go func() {
			_, e := r.Do(ctx, upstream.Call{Tool: "hang", Fingerprint: prints["hang"], Arguments: json.RawMessage(`{}`)})
			done <- e
		}()
		await(t, "call arrives", func() bool { return len(rec.Calls()) == 1 })
		cancel(withdrawn("not needed"))
		wantError(t, <-done, upstream.Cancelled, true)
		var call struct{ ID string }
		if err := json.Unmarshal(rec.Calls()[0].Raw, &call); err != nil {
			t.Fatal(err)
		}
		await(t, "upstream is told", func() bool {
			return strings.Contains(string(rec.Bytes()), `"requestId":"`+call.ID+`","reason":"not needed"`)
		})
	})
}

// A call that cannot have been sent says so.
func TestNotSent(t *testing.T) {
	overAll(t, recorder.Config{Tools: []recorder.Tool{{Name: "echo"}}}, func(t *testing.T, rec *recorder.Recorder, r *running) {
		prints := r.ready()
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_, e := r.Do(ended, upstream.Call{Tool: "echo", Fingerprint: prints["echo"]})
		wantError(t, e, upstream.Cancelled, false)
		_, e = r.Do(context.Background(), upstream.Call{Tool: "echo", Fingerprint: "sha256:other"})
		wantError(t, e, upstream.Quarantined, false)
		_, e = r.Do(context.Background(), upstream.Call{Tool: "unknown", Fingerprint: "sha256:other"})
		wantError(t, e, upstream.Quarantined, false)
		r.Close(context.Background())
		_, e = r.call(prints, "echo", `{}`)
		wantError(t, e, upstream.Unavailable, false)
		if got := len(rec.Calls()); got != 0 {
			t.Errorf("%d calls arrived, want none", got)
		}
	})
}
