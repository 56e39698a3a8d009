package rest

import (
	"cmp"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/artifact"
)

// artifact answers with the bytes of one artifact, whole or in ranges, to who
// was given it. To anybody else it does not exist. The bytes are somebody
// else's: nothing here lets a browser run them.
func (h *Handler) artifact(w http.ResponseWriter, r *http.Request, who policy.Principal) {
	found, file, err := h.opts.Artifacts.Get(r.Context(), who, strings.TrimPrefix(r.URL.Path, artifactPath))
	switch {
	case errors.Is(err, artifact.ErrNotFound):
		h.refuse(w, problem{http.StatusNotFound, "ARTIFACT_NOT_FOUND", "there is no such artifact, or it is not yours to see"})
		return
	case err != nil:
		h.broken(w, err)
		return
	}
	defer file.Close()
	head := w.Header()
	head.Set("Content-Type", cmp.Or(found.Type, artifact.OctetStream)) // without one, net/http would guess
	head.Set("Content-Disposition", "attachment")
	head.Set("Content-Security-Policy", "sandbox; default-src 'none'")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Cache-Control", "private, no-cache") // whether it is still granted is asked each time
	head.Set("Etag", `"`+found.ID+`"`)
	paced := &pacedWriter{ResponseWriter: w, h: h, rc: http.NewResponseController(w)}
	http.ServeContent(paced, r, "", found.Created, file)
	_ = paced.rc.Flush()                       // under the deadline, not after it
	_ = paced.rc.SetWriteDeadline(time.Time{}) // the connection goes on to its next request
}

// pacedWriter drops a reader that takes nothing for a while, and turns the one
// refusal that http.ServeContent words itself into problem details.
type pacedWriter struct {
	http.ResponseWriter
	h       *Handler
	rc      *http.ResponseController
	refused bool // the refusal has been sent
}

// Unwrap lets http.ResponseController reach the connection.
func (p *pacedWriter) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// WriteHeader sends the status, or all of a refused range.
func (p *pacedWriter) WriteHeader(status int) {
	if status != http.StatusRequestedRangeNotSatisfiable {
		p.ResponseWriter.WriteHeader(status)
		return
	}
	p.refused = true
	p.h.refuse(p.ResponseWriter, problem{status, "RANGE_NOT_SATISFIABLE", "the artifact is shorter than that"})
}

// Write sends one piece within the time that a piece may take.
func (p *pacedWriter) Write(piece []byte) (int, error) {
	if p.refused {
		return len(piece), nil
	}
	_ = p.rc.SetWriteDeadline(time.Now().Add(p.h.opts.IOTimeout)) // a writer without deadlines has no network
	return p.ResponseWriter.Write(piece)
}
