package telemetry

import (
	"cmp"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/toolgate/toolgate/internal/span"
)

var (
	traceContext propagation.TraceContext
	kinds        = map[span.Kind]trace.SpanKind{span.Server: trace.SpanKindServer, span.Client: trace.SpanKindClient, span.Stage: trace.SpanKindInternal}
)

// Start begins a span and returns the context that has it. A Server span continues the
// context in params._meta, else the one of the transport's request (the headers of
// HTTP). Where there are both, the transport's is a link. A question that a server asks
// in the course of a call continues that call: a context of another trace in its _meta
// is a link.
func (t *Telemetry) Start(ctx context.Context, s span.Start) context.Context {
	own := trace.SpanContextFromContext(ctx)
	if s.Kind != span.Server {
		if !own.IsSampled() { // one span for all stages
			return ctx
		}
		name := s.Name
		if s.Kind == span.Stage {
			name = stageName(name)
		}
		ctx, _ = t.tracer.Start(ctx, name, trace.WithSpanKind(kinds[s.Kind]))
		return ctx
	}
	var links []trace.Link
	parent, outer := remote(s.Parent), remote(s.Transport)
	switch {
	case own.IsValid() && parent.TraceID() != own.TraceID():
		parent, outer = own, parent
	case !parent.IsValid():
		parent, outer = outer, trace.SpanContext{}
	}
	if outer.IsValid() && !outer.Equal(parent) {
		links = append(links, trace.Link{SpanContext: outer})
	}
	if parent.IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, parent)
	} else {
		ctx = context.WithValue(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), wanted{}, s.TraceID)
	}
	ctx, _ = t.tracer.Start(ctx, s.Name, trace.WithSpanKind(trace.SpanKindServer), trace.WithLinks(links...))
	return ctx
}

// remote returns the span that a context of another process names, the zero value for
// none.
func remote(c span.Carrier) trace.SpanContext {
	if c == nil {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(traceContext.Extract(context.Background(), propagation.MapCarrier(c)))
}

// Carry returns the span of ctx as another process continues it.
func (*Telemetry) Carry(ctx context.Context) span.Carrier {
	c := span.Carrier{}
	traceContext.Inject(ctx, propagation.MapCarrier(c))
	return c
}

// End ends the span of ctx and, unless it is a stage, adds its duration to the
// histogram of its kind.
func (t *Telemetry) End(ctx context.Context, e *span.End) {
	s := trace.SpanFromContext(ctx)
	if e.Kind == span.Stage {
		if s.IsRecording() { // else ctx has the span of the request, which ends later
			fail(s, e)
			s.End()
		}
		return
	}
	durations := t.server
	if e.Kind == span.Client {
		durations = t.client
	}
	durations.Record(ctx, e.Duration.Seconds(), metric.WithAttributes(t.labels(e)...))
	if !s.IsRecording() {
		return
	}
	if target := cmp.Or(e.Tool, e.Prompt); e.Known && target != "" {
		s.SetName(e.Method + " " + strings.ToValidUTF8(target[:min(len(target), maxAttribute)], ""))
	}
	s.SetAttributes(t.attributes(e)...)
	for _, event := range e.Events {
		s.AddEvent(prefix+event.Name, trace.WithTimestamp(event.At), trace.WithAttributes(texts(keyTicket, e.Ticket, keyState, event.Detail)...))
	}
	fail(s, e)
	s.End()
}

// EndSession adds the duration of a session to the histogram of its kind.
func (t *Telemetry) EndSession(s span.Session) {
	durations, transport := t.served, s.Transport
	if s.Server != "" {
		durations = t.used
		transport, _, _ = t.opts.Upstream(s.Server)
	}
	durations.Record(t.life, s.Duration.Seconds(), metric.WithAttributes(texts(
		keyNetwork, transports[transport], keyProtocol, s.Protocol, keyServer, s.Server)...))
}

// fail marks a span that has failed. A denial has an error.type of its own, so that
// alerts about failures can leave it out.
func fail(s trace.Span, e *span.End) {
	if e.Error != "" {
		s.SetAttributes(attribute.String(keyErrorType, e.Error))
		s.SetStatus(codes.Error, e.Code)
	}
}

// labels are the attributes of a metric. None names an agent or a person, or has a value
// that only comes from outside.
func (t *Telemetry) labels(e *span.End) []attribute.KeyValue {
	network := transports[e.Transport]
	if e.Kind == span.Client {
		by, _, _ := t.opts.Upstream(e.Server)
		network = transports[by]
	}
	labels := texts(keyMethod, e.Method, keyErrorType, e.Error, keyNetwork, network)
	if e.Kind == span.Client {
		labels = append(labels, texts(keyServer, e.Server)...)
	}
	if e.Known {
		labels = append(labels, texts(keyTool, e.Tool)...)
	}
	if e.Method == methodCall {
		labels = append(labels, attribute.String(keyOperation, operationTool))
	}
	return labels
}

// attributes are those of a span.
func (t *Telemetry) attributes(e *span.End) []attribute.KeyValue {
	all := append(t.labels(e), texts(
		keyTool, e.Tool, keyPrompt, e.Prompt, keyServer, e.Server, keyProtocol, e.Protocol, keyRequestID, e.RequestID, keyStatus, e.Status,
		keyCode, e.Code, keyUser, e.Subject, keyAgent, e.Agent, keyEffect, e.Effect, keyDecisionID, e.DecisionID, keyOPADecision, e.DecisionID,
		keyRevision, e.Revision, keyRule, e.Rule, keyTicket, e.Ticket)...)
	if e.Kind == span.Client {
		_, host, port := t.opts.Upstream(e.Server)
		all = append(all, texts(keyAddress, host)...)
		if n, err := strconv.Atoi(port); err == nil {
			all = append(all, attribute.Int(keyPort, n))
		}
	}
	return all
}

// texts makes attributes of pairs of a key and a text; a text that is "" has none.
func texts(pairs ...string) []attribute.KeyValue {
	var all []attribute.KeyValue
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			all = append(all, attribute.String(pairs[i], pairs[i+1]))
		}
	}
	return all
}

// stageName returns the name of the span of a stage.
func stageName(stage string) string {
	if stage == "decide" {
		return nameDecide
	}
	return prefix + stage
}

// wanted is the key in a context of the trace id that a span without a parent takes.
type wanted struct{}

// ids makes ids at random, but for a trace that is wanted: a call that runs when it
// has been approved belongs to the trace of the call that asked.
type ids struct{}

// NewIDs implements sdktrace.IDGenerator.
func (g ids) NewIDs(ctx context.Context) (id trace.TraceID, _ trace.SpanID) {
	text, _ := ctx.Value(wanted{}).(string)
	id, err := trace.TraceIDFromHex(text)
	if err != nil {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], 1+rand.Uint64N(1<<63)) // never all zero
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID implements sdktrace.IDGenerator.
func (ids) NewSpanID(context.Context, trace.TraceID) (id trace.SpanID) {
	binary.NativeEndian.PutUint64(id[:], 1+rand.Uint64N(1<<63))
	return id
}
