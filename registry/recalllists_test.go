package registry_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/internal/testkit/recorder"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// pages are the results of list methods.
var pages = map[string]string{
	"prompts/list":             `{"prompts":[{"name":"a"}, {"name":"b\u0000"}]}`,
	"resources/list":           `{"resources":[{"uri":"a:1","n":1e2}]}`,
	"resources/templates/list": `{"resourceTemplates":[]}`,
}

const (
	promptsChanged   = "notifications/prompts/list_changed"
	resourcesChanged = "notifications/resources/list_changed"
)

// lister is a server with prompts and resources, in which some pages are others.
func lister(others ...string) recorder.Config {
	cfg := tools("a")
	cfg.Capabilities, cfg.Answers = json.RawMessage(`{"tools":{},"prompts":{},"resources":{}}`), map[string]json.RawMessage{"prompts/get": json.RawMessage(`{"messages":[]}`)}
	for method, page := range pages {
		cfg.Answers[method] = json.RawMessage(page)
	}
	for i := 0; i < len(others); i += 2 {
		cfg.Answers[others[i]] = json.RawMessage(others[i+1])
	}
	return cfg
}

// keptLists returns what the state has of the lists of server "s", "" for nothing.
func keptLists(t *testing.T, db *store.DB) string {
	t.Helper()
	rows, err := store.Select(t.Context(), db.Read, func(s *[]byte) []any { return []any{s} }, `SELECT lists FROM listings`)
	if err != nil {
		t.Fatal(err)
	}
	if len(rows) == 0 {
		return ""
	}
	return string(rows[0])
}

// listening collects what is announced of lists.
func (s *start) listening() <-chan string {
	announced := make(chan string, 16)
	s.OnListChanged(func(_, method string) { announced <- method })
	return announced
}

// page returns the answer to a request for a list. It fails the test when that takes long.
func (s *start) page(t *testing.T, method string, from registry.Downstream) string {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience/2)
	defer stop()
	result, err := s.Ask(ctx, "s", registry.Ask{Method: method, Params: json.RawMessage(`{}`), From: from})
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	return withoutSpace(string(result))
}

func withoutSpace(text string) string { return strings.ReplaceAll(text, " ", "") }

// waits fails the test unless a request waits for the closed gate.
func (s *start) waits(t *testing.T, method, params string) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	result, err := s.Ask(ctx, "s", registry.Ask{Method: method, Params: json.RawMessage(params)})
	var e *registry.ForwardError
	if !errors.As(err, &e) || ctx.Err() == nil || e.Sent {
		t.Errorf("%s %s did not wait: %s, %v", method, params, result, err)
	}
}

// A list that was seen is answered at once, byte for byte but for its pages. What is no
// list, or a further page, waits for the server. Nothing is announced when the server's
// own lists are the same.
func TestSeenListsAreAnsweredAtOnce(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, lister(), nil)
	s := startGated(t, db, lister(), nil)
	announced := s.listening()
	for method, want := range pages {
		if got := s.page(t, method, registry.Downstream{Session: "s"}); got != withoutSpace(want) {
			t.Errorf("%s: %s, want %s", method, got, want)
		}
	}
	s.waits(t, "resources/list", `{"cursor":"2"}`)
	s.waits(t, "prompts/get", `{"name":"a"}`)
	s.gate.Open()
	s.awaitListed(t)
	if len(announced) > 0 {
		t.Errorf("announced %s", <-announced)
	}
}

// awaitListed waits until toolgate has asked for all lists itself, and has got answers.
func (s *start) awaitListed(t *testing.T) {
	t.Helper()
	await(t, "the server is asked for the last list", func() bool { return slices.Contains(s.rec.Methods(), "resources/templates/list") })
	s.page(t, "prompts/get", registry.Downstream{}) // whose answer comes later
}

// Each list that differs from the kept list is announced, and replaces it.
func TestSeenListsThatChange(t *testing.T) {
	for name, tc := range map[string]struct {
		now  recorder.Config
		want []string
	}{
		"prompts":            {lister("prompts/list", `{"prompts":[]}`), []string{promptsChanged}},
		"resources":          {lister("resources/list", `{"resources":[{"uri":"a:1","n":1e3}]}`), []string{resourcesChanged}},
		"templates":          {lister("resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"a:{x}"}]}`), []string{resourcesChanged}},
		"both kinds":         {lister("prompts/list", `{"prompts":[]}`, "resources/list", `{"resources":[]}`), []string{promptsChanged, resourcesChanged}},
		"no longer offered":  {tools("a"), []string{promptsChanged, resourcesChanged}},
		"no longer answered": {lister("resources/list", `[]`), nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, filepath.Join(t.TempDir(), "state.db"))
			seenBefore(t, db, lister(), nil)
			before := keptLists(t, db)
			s := startGated(t, db, tc.now, nil)
			announced := s.listening()
			s.page(t, "prompts/list", registry.Downstream{})
			s.gate.Open()
			got := map[string]bool{}
			if tc.want == nil {
				s.awaitListed(t)
			}
			for range tc.want {
				await(t, "an announcement", func() bool { return len(announced) > 0 })
				got[<-announced] = true
			}
			if diff := gocmp.Diff(tc.want, slices.Sorted(maps.Keys(got))); diff != "" || len(announced) > 0 {
				t.Errorf("(-want +got):\n%s", diff)
			}
			await(t, "the new lists are kept", func() bool { return (keptLists(t, db) == before) == (tc.want == nil) })
		})
	}
}

// A client whose own connection may list more gets what all see while the server starts,
// and is notified when there may be more.
func TestSeenListsOfAnAbleClient(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, lister(), nil)
	s := startGated(t, db, lister(), nil)
	announced := s.listening()
	if got := s.page(t, "prompts/list", client("able", `{"sampling":{}}`)); got != withoutSpace(pages["prompts/list"]) {
		t.Errorf("listed %s", got)
	}
	s.gate.Open()
	await(t, "an announcement", func() bool { return len(announced) > 0 })
	s.awaitListed(t)
	if got := <-announced; got != promptsChanged || len(announced) > 0 {
		t.Errorf("announced %s and %d more", got, len(announced))
	}
}

// Lists of a server that fails are answered with what it listed last.
func TestSeenListsOfAFailedServer(t *testing.T) {
	db := database(t, filepath.Join(t.TempDir(), "state.db"))
	seenBefore(t, db, lister(), nil)
	crash := lister()
	crash.CrashAtStart = true
	s := startGated(t, db, crash, nil)
	await(t, "the server has failed", func() bool { return s.Status()[0].State == "failed" })
	if offers := s.Offers(t.Context()); len(offers) != 1 {
		t.Errorf("%d servers have lists", len(offers))
	}
	s.page(t, "resources/list", registry.Downstream{Session: "s"})
	if _, err := s.Ask(t.Context(), "s", registry.Ask{Method: "prompts/get"}); err == nil {
		t.Error("a failed server gave a prompt")
	}
}

// Lists of a server that is restarted are answered at once, without a state too.
func TestListsDuringRestart(t *testing.T) {
	s := startGated(t, nil, lister(), nil)
	s.gate.Open()
	await(t, "the lists are kept", func() bool { return s.Recalls("s") }) // a list whose answer a restart meets is not
	s.gate.Shut()
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		_, _ = s.Restart(t.Context(), "s")
	}()
	await(t, "the server starts again", func() bool { return s.gate.Held() == 1 })
	s.page(t, "prompts/list", registry.Downstream{})
	s.waits(t, "prompts/get", `{}`)
	s.gate.Open()
	<-restarted
}

// What is not kept waits for the server: lists of a server that was never seen, of a state
// that an earlier version wrote, of another origin, and damaged ones. It is announced when
// the server is late, and only then.
func TestListsThatAreNotKept(t *testing.T) {
	for name, tc := range map[string]struct {
		state  string // what becomes of the row
		lists  string // what becomes of its lists
		change func(*config.Server, *config.Config)
	}{
		"never seen":      {state: `DELETE FROM listings`},
		"earlier version": {state: `UPDATE listings SET lists = NULL`},
		"damaged":         {lists: `{`},
		"one of them":     {lists: `{"resources":[]}`},
		"another origin":  {change: func(c *config.Server, _ *config.Config) { c.Origin.Command = "other" }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := database(t, filepath.Join(t.TempDir(), "state.db"))
			seenBefore(t, db, lister(), nil)
			_, err := db.Write.ExecContext(t.Context(), cmp.Or(tc.state, `SELECT 1`))
			if err == nil && tc.lists != "" {
				_, err = db.Write.ExecContext(t.Context(), `UPDATE listings SET lists = ?`, []byte(tc.lists))
			}
			if err != nil {
				t.Fatal(err)
			}
			s := startGated(t, db, lister(), tc.change)
			s.waits(t, "prompts/list", `{}`)
			announced := s.listening()
			s.gate.Open()
			if got := s.page(t, "prompts/list", registry.Downstream{}); got != withoutSpace(pages["prompts/list"]) {
				t.Errorf("listed %s", got)
			}
			s.awaitListed(t)
			for len(announced) > 0 {
				if method := <-announced; name != "one of them" || method != resourcesChanged {
					t.Errorf("announced %s", method)
				}
			}
			await(t, "all lists are kept", func() bool { return strings.Count(keptLists(t, db), ":[") == len(pages) })
		})
	}
}

// A server that takes longer than start_wait and was never seen has its lists announced.
func TestListsOfALateServer(t *testing.T) {
	s := startGated(t, database(t, filepath.Join(t.TempDir(), "state.db")), lister(), func(c *config.Server, _ *config.Config) { c.StartWait = 50 * time.Millisecond })
	announced := s.listening()
	if _, err := s.Ask(t.Context(), "s", registry.Ask{Method: "resources/list"}); err == nil || !strings.Contains(err.Error(), "still starting") {
		t.Error(err)
	}
	s.gate.Open()
	await(t, "two announcements", func() bool { return len(announced) == 2 })
}

// A server without tools, of which there is nothing to accept, is one that was seen.
func TestSeenWithoutTools(t *testing.T) {
	db, cfg := database(t, filepath.Join(t.TempDir(), "state.db")), lister()
	cfg.Tools = nil
	seenBefore(t, db, cfg, nil)
	s := startGated(t, db, cfg, nil)
	if got := s.list(t, registry.Downstream{}); len(got) != 0 {
		t.Errorf("listed %v", got)
	}
	s.page(t, "prompts/list", registry.Downstream{})
}
