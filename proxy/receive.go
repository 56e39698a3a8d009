package proxy

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"strings"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/signal"
)

// receive takes the parts of the request that the road works on. The bytes of
// the arguments are those that were decoded: nothing is marshalled again.
func receive(_ context.Context, _ *Gate, p *passage) *Failure {
	m := p.in.Message
	if m == nil {
		return p.fault(p.in.Fault)
	}
	p.id = jsonrpc.IDText(m.ID)
	if m.Kind != jsonrpc.Request {
		return p.fail(signal.CodeEnvelopeInvalid, "tools/call needs an id")
	}
	name, ok := jsonrpc.Get(m.Params, "name")
	if !ok {
		return p.fail(signal.CodeEnvelopeInvalid, "params.name is missing")
	}
	if p.name, ok = jsonrpc.Text(name); !ok || p.name == "" {
		return p.fail(signal.CodeEnvelopeInvalid, "params.name must be a string that is not empty")
	}
	p.args = json.RawMessage("{}")
	if args, ok := jsonrpc.Get(m.Params, "arguments"); ok {
		if len(args) == 0 || args[0] != '{' {
			return p.fail(signal.CodeEnvelopeInvalid, "params.arguments must be an object")
		}
		p.args = args
	}
	p.digest = digest(p.args)
	if f := p.takeTask(m.Params); f != nil {
		return f
	}
	return p.takeMeta(m.Params)
}

// digest names judged bytes.
func digest(judged []byte) string {
	sum := sha256.Sum256(judged)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// takeMeta keeps the caller's _meta but for what belongs to this hop.
func (p *passage) takeMeta(params json.RawMessage) *Failure {
	meta, ok := jsonrpc.Get(params, "_meta")
	if !ok {
		return nil
	}
	if len(meta) == 0 || meta[0] != '{' {
		return p.fail(signal.CodeEnvelopeInvalid, "params._meta must be an object")
	}
	for key := range jsonrpc.Members(meta) {
		if !ofThisHop(key) {
			continue
		}
		kept, err := jsonrpc.Delete(meta, key)
		if err != nil {
			return p.fail(signal.CodeEnvelopeInvalid, "params._meta cannot be read")
		}
		meta = kept
	}
	p.meta = meta
	return nil
}

// ofThisHop tells the members of _meta that mean something between two ends
// only. Which task a message belongs to is for the ends beyond them too.
func ofThisHop(key string) bool {
	if key == "io.modelcontextprotocol/related-task" {
		return false
	}
	return key == "progressToken" || strings.HasPrefix(key, "io.modelcontextprotocol/") || strings.HasPrefix(key, "io.toolgate/")
}

// fault is the failure for bytes that were no request.
func (p *passage) fault(f *jsonrpc.Fault) *Failure {
	if f == nil {
		return p.fail(signal.CodeEnvelopeInvalid, "there is no message")
	}
	p.id = jsonrpc.IDText(f.ID)
	code := signal.CodeEnvelopeInvalid
	switch f.Kind {
	case jsonrpc.Parse:
		code = signal.CodeEnvelopeParse
	case jsonrpc.TooLarge:
		code = signal.CodeEnvelopeTooLarge
	}
	return p.fail(code, f.Reason).with("pointer", f.Pointer).with("want", f.Want).with("got", f.Got)
}

// identify fails closed: no principal, no call.
func identify(ctx context.Context, g *Gate, p *passage) *Failure {
	who, err := g.opts.Identifier.Identify(ctx, p.in.Credential)
	if errors.Is(err, identity.ErrUnauthenticated) || (err == nil && !who.Valid()) {
		return p.fail(signal.CodeUnauthenticated, "the credential names nobody")
	}
	if err != nil {
		g.opts.Log.Error("identifying a caller", "error", err)
		return p.fail(signal.CodeUnauthenticated, "the credential could not be checked")
	}
	who.Client = p.in.Client
	p.principal = who
	return nil
}

// traceOf continues the caller's trace (that of the door, else W3C traceparent
// in params._meta) or starts one.
func traceOf(in *Call) string {
	if in.TraceID != "" {
		return in.TraceID
	}
	if in.Message != nil && in.Message.Params != nil {
		if meta, ok := jsonrpc.Get(in.Message.Params, "_meta"); ok {
			if raw, ok := jsonrpc.Get(meta, "traceparent"); ok {
				if id, ok := traceID(raw); ok {
					return id
				}
			}
		}
	}
	return signal.NewID("trc_")
}

// traceID reads version-trace-parent-flags of the W3C Trace Context.
func traceID(raw json.RawMessage) (string, bool) {
	s, ok := jsonrpc.Text(raw)
	parts := strings.Split(s, "-")
	if !ok || len(parts) != 4 || len(parts[1]) != 32 {
		return "", false
	}
	b, err := hex.DecodeString(parts[1])
	if err != nil || strings.Trim(parts[1], "0") == "" || parts[1] != strings.ToLower(parts[1]) {
		return "", false
	}
	return hex.EncodeToString(b), true
}
