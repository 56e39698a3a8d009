package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/toolgate/toolgate/internal/jsonrpc"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/registry"
)

// tools answers with what who may call. What is not in the list cannot be
// called and the reverse: both ask the same question.
func (h *Handler) tools(w http.ResponseWriter, r *http.Request, who policy.Principal) {
	if !h.plain(w, r) {
		return
	}
	name, filtered, ok := toolsQuery(r.URL)
	if !ok {
		h.refuse(w, problem{http.StatusBadRequest, "BAD_QUERY", "the one parameter is name, given once"})
		return
	}
	body := []byte(`{"tools":[`)
	first := true
	for _, t := range h.opts.Gate.List(r.Context(), &proxy.Call{Transport: "rest"}, who) {
		if filtered && t.Exposed != name {
			continue
		}
		io, err := h.opts.ToolIO(t.Exposed)
		if errors.Is(err, registry.ErrUnknownTool) {
			continue // it has gone since it was listed
		}
		if err != nil {
			h.broken(w, err)
			return
		}
		if !first {
			body = append(body, ',')
		}
		body, first = appendTool(body, t, io), false
	}
	h.write(w, http.StatusOK, jsonType, append(body, "]}"...))
}

// toolsQuery reads the query of a list. A parameter that is not known is
// refused: a filter that was silently ignored would show too much.
func toolsQuery(u *url.URL) (name string, filtered, ok bool) {
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", false, false
	}
	for key, values := range query {
		if key != "name" || len(values) != 1 {
			return "", false, false
		}
		name, filtered = values[0], true
	}
	return name, filtered, true
}

// appendTool appends one tool. Title, annotations and schemas are the
// upstream's own bytes.
func appendTool(body []byte, t *registry.Tool, io *registry.ToolIO) []byte {
	body = fmt.Appendf(body, `{"name":%s,"server":%s,"tool":%s`, jsonrpc.Quote(t.Exposed), jsonrpc.Quote(t.Server), jsonrpc.Quote(t.Name))
	if title, ok := textOf(t, "title"); ok {
		body = fmt.Appendf(body, `,"title":%s`, jsonrpc.Quote(title))
	}
	description, _ := textOf(t, "description")
	annotations := t.Annotations
	if len(annotations) == 0 || annotations[0] != '{' {
		annotations = []byte("{}")
	}
	return fmt.Appendf(body, `,"description":%s,"risk":%s,"annotations":%s,"fingerprint":%s,"input_schema":%s,"output_schema":%s}`,
		jsonrpc.Quote(description), jsonrpc.Quote(t.Risk), annotations, jsonrpc.Quote(t.Fingerprint), io.Input, io.Output)
}

// textOf gives a string member of t's definition, and whether it is there.
func textOf(t *registry.Tool, key string) (string, bool) {
	raw, ok := jsonrpc.Get(t.Definition, key)
	if !ok {
		return "", false
	}
	return jsonrpc.Text(raw)
}
