package page

import (
	"encoding/json"
	"net/http"

	"github.com/toolgate/toolgate/policy"
)

// A Handler answers a request, or returns the reason for a refusal, which the console
// writes. A Handler that returns an error must not have written anything.
type Handler func(w http.ResponseWriter, r *http.Request) error

// A CallerHandler is a handler that knows its caller.
type CallerHandler func(w http.ResponseWriter, r *http.Request, p policy.Principal) error

// Answers returns a handler that answers with what h returns.
func Answers[T any](h func(r *http.Request, p policy.Principal) (T, error)) CallerHandler {
	return func(w http.ResponseWriter, r *http.Request, p policy.Principal) error {
		found, err := h(r, p)
		if err != nil {
			return err
		}
		return Answer(w, found)
	}
}

// Answer writes value as JSON.
func Answer(w http.ResponseWriter, value any) error { return AnswerAs(w, http.StatusOK, value) }

// AnswerAs is Answer with another status.
func AnswerAs(w http.ResponseWriter, status int, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // a reader that went away needs no answer
	return nil
}

// Parts returns a handler that answers with the part of a list that ask returns, under a name.
func Parts[L interface{ Object(string) map[string]any }](name string, ask func(*http.Request, policy.Principal) (L, error)) CallerHandler {
	return Answers(func(r *http.Request, p policy.Principal) (map[string]any, error) {
		found, err := ask(r, p)
		return found.Object(name), err
	})
}

// Routes are the handlers of paths, by method.
type Routes map[string]map[string]Handler
