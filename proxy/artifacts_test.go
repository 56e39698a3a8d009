package proxy_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/signal"
)

// memoryStore keeps artifacts in memory.
type memoryStore struct {
	err  error
	kept []string // owner, type and content
}

func (s *memoryStore) Put(_ context.Context, owner policy.Principal, media string, data []byte) (artifact.Artifact, error) {
	if s.err != nil {
		return artifact.Artifact{}, s.err
	}
	sum := sha256.Sum256(data)
	s.kept = append(s.kept, owner.Subject+" "+media+" "+string(data))
	return artifact.Artifact{ID: "sha256:" + hex.EncodeToString(sum[:]), Type: media, Size: int64(len(data))}, nil
}

func withStore(t *testing.T, s *memoryStore, set proxy.Settings) *bench {
	t.Helper()
	b := newBench(t)
	g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Artifacts: s, Settings: set,
		Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}})
	if err != nil {
		t.Fatal(err)
	}
	b.Gate = g
	return b
}

// "aGk=" is "hi".
const picture = `{"content":[{"type":"text","text":"see"},{"type":"image","data":"aGk=","mimeType":"image/png"},{"type":"resource_link","uri":"file:///x","name":"x"}]}`

// Bytes that a result carries are kept for its principal, in every mode that
// speaks of signals; links are not followed.
func TestBytesAreKept(t *testing.T) {
	for _, tt := range []struct {
		mode, transport string
		want            []string
	}{
		{"compact", "http", []string{"ann image/png hi"}},
		{"full", "http", []string{"ann image/png hi"}},
		{"signals", "http", []string{"ann image/png hi"}},
		{"off", "http", nil},
		{"off", "rest", []string{"ann image/png hi"}},
		{"off", "ndjson", []string{"ann image/png hi"}},
	} {
		s := &memoryStore{}
		b := withStore(t, s, proxy.Settings{Results: tt.mode})
		b.result = picture
		in := request(t, plain)
		in.Transport = tt.transport
		if _, f := b.Call(t.Context(), in); f != nil {
			t.Fatal(f)
		}
		if diff := cmp.Diff(tt.want, s.kept); diff != "" {
			t.Errorf("%s over %s (-want +got):\n%s", tt.mode, tt.transport, diff)
		}
	}
}

// Size rule: in mode signals, and in no other, what is larger than Inline
// leaves the result, and a link to it stays.
func TestLargePartsBecomeArtifacts(t *testing.T) {
	long := strings.Repeat("a", 100)
	for _, tt := range []struct {
		name, mode, result string
		kinds              []signal.Kind // of the signals in the agent's result
		links              int
	}{
		{"a short text stays", "signals", `{"content":[{"type":"text","text":"short"}]}`, []signal.Kind{signal.Text}, 0},
		{"a text at the limit stays", "signals", `{"content":[{"type":"text","text":"` + long[:64] + `"}]}`, []signal.Kind{signal.Text}, 0},
		{"a long text becomes a file", "signals", `{"content":[{"type":"text","text":"` + long + `"}]}`, []signal.Kind{signal.File}, 1},
		{"so does long JSON", "signals", `{"content":[],"structuredContent":{"a":"` + long + `"}}`, []signal.Kind{signal.File}, 1},
		{"the same twice is one link", "signals", `{"content":[{"type":"text","text":"` + long + `"},{"type":"text","text":"` + long + `"}]}`, []signal.Kind{signal.File, signal.File}, 1},
		{"a picture is a file at any size", "signals", picture, []signal.Kind{signal.Text, signal.File, signal.File}, 1},
		{"why a tool failed is said whole", "signals", `{"content":[{"type":"text","text":"` + long + `"}],"isError":true}`, []signal.Kind{signal.Data}, 0},
		{"full leaves it where it is", "full", `{"content":[{"type":"text","text":"` + long + `"}]}`, []signal.Kind{signal.Text}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &memoryStore{}
			b := withStore(t, s, proxy.Settings{Results: tt.mode, Inline: 64, ArtifactURL: "http://gate"})
			b.result = tt.result
			reply, f := b.call(t, plain)
			if f != nil {
				t.Fatal(f)
			}
			var got struct {
				Content []struct{ Type, URI, Name, MimeType string }
				Meta    struct {
					Result signal.Result `json:"io.toolgate/result"`
				} `json:"_meta"`
			}
			if err := json.Unmarshal(reply.Result, &got); err != nil {
				t.Fatalf("%s: %v", reply.Result, err)
			}
			var kinds []signal.Kind
			for _, sig := range got.Meta.Result.Signals {
				kinds = append(kinds, sig.Kind())
			}
			links := 0
			for _, block := range got.Content {
				if block.Type == "resource_link" && strings.HasPrefix(block.URI, "http://gate/v1/artifacts/sha256:") {
					links++
				}
			}
			if tt.mode != "signals" && len(s.kept) != 0 {
				t.Errorf("mode %s kept %q", tt.mode, s.kept)
			}
			if diff := cmp.Diff(tt.kinds, kinds); diff != "" || links != tt.links {
				t.Errorf("%d links, want %d, kinds (-want +got):\n%s\n%s", links, tt.links, diff, reply.Result)
			}
			if len(reply.Kernel.Signals) != len(kinds) || reply.Kernel.Signals[0].ParentID() != got.Meta.Result.Signals[0].ParentID() {
				t.Errorf("the kernel result lost its lineage: %v", reply.Kernel)
			}
		})
	}
}

// A store that fails loses nothing: the part stays in the result, which is
// partial.
func TestWhatCannotBeKeptStays(t *testing.T) {
	long := strings.Repeat("a", 100)
	b := withStore(t, &memoryStore{err: errors.New("disk full")}, proxy.Settings{Results: "signals", Inline: 10})
	b.result = `{"content":[{"type":"text","text":"` + long + `"}]}`
	reply, f := b.call(t, plain)
	if f != nil {
		t.Fatal(f)
	}
	if reply.Kernel.Status != signal.StatusPartial || reply.Kernel.Error.Code != "T4_ARTIFACT_NOT_KEPT" || !strings.Contains(string(reply.Result), long) {
		t.Errorf("got %v: %s", reply.Kernel.Status, reply.Result)
	}
}

// recordingBus keeps the signals of ann.
type recordingBus struct{ heard []signal.Signal }

func (e *recordingBus) Listening(p policy.Principal) bool           { return p.Subject == "ann" }
func (e *recordingBus) Publish(_ policy.Principal, s signal.Signal) { e.heard = append(e.heard, s) }
func (e *recordingBus) say(s signal.Signal) string                  { return string(s.Kind()) + " " + e.gist(s) }
func (e *recordingBus) gist(s signal.Signal) string {
	body := s.Body()
	for _, key := range []string{"text", "chunk", "action"} {
		if v, ok := body[key].(string); ok {
			return v
		}
	}
	if failed, ok := signal.ErrorOf(s); ok {
		return failed.Code
	}
	return "?"
}

// The bus hears every call of those who listen: signals as the rules of
// composition pass them, progress as chunks with an end, a failure as an error
// signal, a cancellation as the command abort, a pending call as nothing. All
// name the call as their parent.
func TestTheBusHears(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*bench)
		want []string
	}{
		{"a result", func(*bench) {}, []string{"text hello"}},
		{"a denial", func(b *bench) { b.decision.Effect = policy.Deny }, []string{"data " + signal.CodePolicyDenied}},
		{"the tool's own error", func(b *bench) { b.result = `{"content":[{"type":"text","text":"no"}],"isError":true}` }, []string{"data " + signal.CodeToolFailed}},
		{"a cancellation", func(b *bench) {
			b.forwardErr = &registry.ForwardError{Kind: registry.Cancelled, Sent: true, Err: context.Canceled}
		}, []string{"command abort"}},
		{"a pending call", func(b *bench) { b.decision, b.claim = held, pendingClaim() }, []string{"data " + signal.CodeApprovalPending}},
		{"an inner fault", func(b *bench) { b.panicAt = "record" }, []string{"data " + signal.CodeInternal}},
		{"progress", func(b *bench) { b.steps = []string{`{"progress":1,"message":"half"}`, `{"progress":2}`} },
			[]string{"stream half", `stream {"progress":2}`, "stream ", "text hello"}},
		{"nobody listens", func(b *bench) { b.who.Subject = "bob" }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, b := &recordingBus{}, newBench(t)
			tt.set(b)
			g, err := proxy.New(proxy.Options{Identifier: b, Policy: b, Limiter: b, Tickets: b, Recorder: b, Bus: e,
				Upstreams: upstreams{bench: b, catalogue: registry.NewCatalogue([]string{"web"}, searcher)}})
			if err != nil {
				t.Fatal(err)
			}
			in := request(t, plain)
			in.SignalID, in.TraceID = "sig_parent", "trc_given"
			g.Call(t.Context(), in)
			var got []string
			for _, s := range e.heard {
				got = append(got, e.say(s))
				if s.ParentID() != "sig_parent" || s.TraceID() != "trc_given" || s.Tag(signal.TagDecision) == "" {
					t.Errorf("%s: parent %q, trace %q, decision %q", e.say(s), s.ParentID(), s.TraceID(), s.Tag(signal.TagDecision))
				}
				if failed, ok := signal.ErrorOf(s); ok && s.Tag(signal.TagNext) != map[bool]string{true: "retry", false: "escalate"}[failed.RetryEligible] {
					t.Errorf("%s: next %q, may be retried: %v", e.say(s), s.Tag(signal.TagNext), failed.RetryEligible)
				}
				if s.Kind() != signal.File && s.Body() == nil {
					t.Error("a signal without a body")
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
