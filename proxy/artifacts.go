package proxy

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/proxy/artifact"
	"github.com/toolgate/toolgate/signal"
)

// codeNotKept is the error of a partial result whose bytes could not be stored:
// the call has been made, and the rest of its result is still useful.
const codeNotKept = "T4_ARTIFACT_NOT_KEPT"

// keepArtifacts puts the inline bytes behind FILE signals into the artifact
// store, for the principal of the call. With Results signals it also takes out of
// the signals what is larger than Inline. A store that fails makes the result
// partial; what it could not keep stays where it was.
func (t *toolCall) keepArtifacts(ctx context.Context, o *outcome, signals []signal.Signal) *signal.KernelError {
	set := t.gate.settings.Load()
	carriesSignals := t.in.Transport == "rest" || t.in.Transport == "ndjson" // in every mode
	if set.Results == "off" && !carriesSignals {
		return nil
	}
	k := keeper{call: t, settings: set, out: o}
	for i, s := range signals {
		k.keep(context.WithoutCancel(ctx), s, o.refs[i])
	}
	return k.fault
}

// keeper keeps the parts of one result.
type keeper struct {
	call     *toolCall
	settings *Settings
	out      *outcome
	fault    *signal.KernelError
}

// keep keeps what one signal stands for, and in mode signals says what is left
// in its place.
func (k *keeper) keep(ctx context.Context, s signal.Signal, ref string) {
	slim := s
	if s.Kind() == signal.File {
		if data, media, ok := signal.InlineFile(k.out.result, ref); ok {
			k.put(ctx, media, data)
		}
	} else if k.settings.Results == "signals" {
		if media, data := large(s, k.settings.Inline); data != nil {
			if a, ok := k.put(ctx, media, data); ok {
				slim = k.reference(s, a)
			}
		}
	}
	if k.settings.Results == "signals" {
		k.out.slim = append(k.out.slim, slim)
	}
}

// large gives the payload of a TEXT or DATA signal beyond most bytes. Errors
// stay whole: nobody should need a second request to read why.
func large(s signal.Signal, most int) (media string, data []byte) {
	if _, failed := signal.ErrorOf(s); failed {
		return "", nil
	}
	switch s.Kind() {
	case signal.Text:
		media = "text/plain; charset=utf-8"
		text, _ := s.Body()["text"].(string)
		data = []byte(text)
	case signal.Data:
		media = "application/json"
		data, _ = json.Marshal(s.Body()["data"]) // it came from JSON
	}
	if len(data) <= most {
		return "", nil
	}
	return media, data
}

// put keeps data and notes the link to it.
func (k *keeper) put(ctx context.Context, media string, data []byte) (artifact.Artifact, bool) {
	a, err := k.call.gate.opts.Artifacts.Put(ctx, k.call.principal, media, data)
	if err != nil {
		k.fail(err)
		return artifact.Artifact{}, false
	}
	if !slices.ContainsFunc(k.out.links, func(l link) bool { return l.name == a.ID }) {
		k.out.links = append(k.out.links, link{url: k.settings.ArtifactURL + "/v1/artifacts/" + a.ID, name: a.ID, media: a.Type, size: a.Size})
	}
	return a, true
}

func (k *keeper) fail(err error) {
	p := k.call
	p.gate.opts.Log.Error("keeping an artifact", "decision", p.decisionID, "error", err)
	fault, err := signal.CreateError(codeNotKept, signal.Resource, signal.Degraded,
		"a part of the result could not be kept as an artifact", p.source(), false, nil, nil)
	if err != nil {
		fault = p.fail(signal.CodeInternal, "").Kernel
	}
	k.fault = fault
}

// reference is the FILE signal that stands for s.
func (k *keeper) reference(s signal.Signal, a artifact.Artifact) signal.Signal {
	file, err := signal.CreateFile(a.ID, a.Type, "", s.Origin(), s.TraceID(), signal.WithTags(s.Tags()), signal.WithParent(s.ParentID()), signal.WithSize(a.Size))
	if err != nil {
		k.fail(err)
		return s
	}
	return file
}

// link is a resource link to an artifact (MCP server/tools, "Resource Links").
type link struct {
	url, name, media string
	size             int64
}

func (l link) block() []byte {
	out := append([]byte(`{"type":"resource_link","uri":`), jsonrpc.Quote(l.url)...)
	out = append(append(out, `,"name":`...), jsonrpc.Quote(l.name)...)
	out = append(append(out, `,"mimeType":`...), jsonrpc.Quote(l.media)...)
	out = append(out, `,"size":`...)
	return append(strconv.AppendInt(out, l.size, 10), '}')
}
