package console

import (
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/console/page"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/policy"
)

// maxProfile bounds the time over which a profile is taken.
const maxProfile = time.Minute

// profile answers with the profile of toolgate that the path names, for those who may
// take profiles. It is recorded first. Close ends it early.
func (h *health) profile(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
	name := r.PathValue("name")
	act := people.Act{Name: people.ActProfile, Principal: p, Profile: page.Visible(name)}
	if h.profiles == nil || !h.profiles(p) {
		return h.RecordRefusal(r, act, page.Problem{Status: http.StatusForbidden, Code: "NOT_PROFILER", Detail: "you may not take profiles", Hint: "toolgate.pprof_role names the role that may"})
	}
	// The command line is left out, because it may hold a token.
	take := map[string]http.HandlerFunc{"profile": pprof.Profile, "trace": pprof.Trace}[name]
	if take == nil && runtimepprof.Lookup(name) != nil {
		take = pprof.Handler(name).ServeHTTP
	}
	if take == nil {
		return page.Problem{Status: http.StatusNotFound, Code: "NO_PROFILE", Detail: "there is no profile of this name", Hint: "profile, trace, heap, allocs, goroutine, block, mutex and threadcreate are there"}
	}
	if text := r.FormValue("seconds"); text != "" {
		if n, err := strconv.Atoi(text); err != nil || n < 1 || n > int(maxProfile.Seconds()) {
			return page.Problem{Status: http.StatusBadRequest, Code: "BAD_QUERY", Detail: "seconds must be from 1 to 60"}
		}
	}
	if err := h.Record(r, act); err != nil {
		return err
	}
	h.Log.Info("taking a profile", "profile", name, "subject", p.Subject)
	ctx, stop := h.UntilClosed(r.Context())
	defer stop()
	take(w, r.WithContext(ctx))
	return nil
}
