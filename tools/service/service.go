// Package service has what the clients of the services behind the standard tools share:
// the failure that a model may read, and the connection that keeps a key where it was
// sent.
package service

import (
	"cmp"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Failure is why a service did not do its work. Its text is for models and operators
// alike and quotes nothing that the service sent.
type Failure struct {
	Text  string
	Hint  string // what an operator can do, which only the log has; "" = nothing
	Again bool   // the request may be repeated
}

// Error gives the text and the hint, on one line for a log.
func (f *Failure) Error() string {
	if f.Hint == "" {
		return f.Text
	}
	return f.Text + " (hint: " + f.Hint + ")"
}

// Refused gives the text alone, for the result of the call.
func (f *Failure) Refused() string { return f.Text }

// ErrRedirect is in the chain of the error of a client for a redirect that it refuses.
var ErrRedirect = errors.New("redirects to another host")

// NewClient returns a client that sends a request, and with it the key, to one host
// only: a redirect to another one is an error, and so are more redirects than a number.
func NewClient(redirects int) *http.Client {
	return &http.Client{
		Transport: http.DefaultTransport.(*http.Transport).Clone(),
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if len(via) > redirects || next.URL.Scheme != via[0].URL.Scheme || next.URL.Host != via[0].URL.Host {
				return ErrRedirect
			}
			return nil
		},
	}
}

// refusals are the statuses for a key, a plan or a client that a service refuses. 432 and
// 433 are Tavily's for the limits of a plan.
var refusals = []int{http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, 432, 433}

// RefusesKey reports whether a status is for a key or a plan that a service refuses.
func RefusesKey(status int) bool { return slices.Contains(refusals, status) }

// longestBlock bounds what a service may have a model wait.
const longestBlock = 24 * time.Hour

// ComeBack says when a service may be asked again: by Retry-After, in seconds or as a
// date, or else by the first number of Brave's X-RateLimit-Reset, in seconds.
func ComeBack(h http.Header, now time.Time) string {
	first, _, _ := strings.Cut(h.Get("X-RateLimit-Reset"), ",")
	text, after := cmp.Or(h.Get("Retry-After"), strings.TrimSpace(first)), time.Duration(0)
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		after = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(text); err == nil {
		after = date.Sub(now).Round(time.Second)
	}
	if after <= 0 {
		return "; try again later"
	}
	return "; try again in " + min(after, longestBlock).String()
}
