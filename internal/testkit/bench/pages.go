package main

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// console returns the address of the console that a toolgate has printed, "" for any other
// peer.
func (p *peer) console() (string, error) {
	printed, err := os.ReadFile(p.log.Name())
	return string(consoleURL.Find(printed)), err
}

// openPages signs in at a toolgate's console and keeps lists of calls open as browsers do:
// each list hears of the calls that come, until the toolgate ends.
func (p *peer) openPages(count int) error {
	console, err := p.console()
	if err != nil {
		return err
	}
	cookie, err := signIn(console, p.token)
	if err != nil {
		return fmt.Errorf("signing in: %w", err)
	}
	for range count {
		list, err := openList(console, cookie)
		if err != nil {
			return fmt.Errorf("opening a list of calls: %w", err)
		}
		go func() {
			defer list.Close()
			_, _ = io.Copy(io.Discard, list) // ends with the toolgate
		}()
	}
	return nil
}

// openList asks for a list of calls until the index of calls is there, which is made after the
// start.
func openList(console string, cookie *http.Cookie) (io.ReadCloser, error) {
	for begun := time.Now(); ; pause(100 * time.Millisecond) {
		res, err := ask(http.MethodGet, console+"calls/events", cookie, nil)
		if err == nil {
			return res.Body, nil
		}
		if time.Since(begun) > startTime {
			return nil, err
		}
	}
}

// signIn signs in with a token and returns the cookie of the session.
func signIn(console, token string) (*http.Cookie, error) {
	res, err := ask(http.MethodGet, console+"login", nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	form := res.Cookies()
	if len(form) != 1 {
		return nil, fmt.Errorf("the form came with %d cookies", len(form))
	}
	entered, err := ask(http.MethodPost, res.Request.URL.String(), form[0], url.Values{"csrf": {form[0].Value}, "token": {token}})
	if err != nil {
		return nil, err
	}
	defer entered.Body.Close()
	for _, c := range entered.Cookies() {
		if c.Value != "" {
			return c, nil
		}
	}
	return nil, fmt.Errorf("no session: status %s", entered.Status)
}

// ask sends a request of a browser and returns the answer, whose body the caller closes. A
// status that is an error is one.
func ask(method, to string, cookie *http.Cookie, form url.Values) (*http.Response, error) {
	req, err := http.NewRequest(method, to, strings.NewReader(form.Encode())) //nolint:noctx // it is on this machine
	if err != nil {
		return nil, err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if cookie != nil {
		req.AddCookie(cookie)
	}
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err == nil && res.StatusCode >= http.StatusBadRequest {
		res.Body.Close()
		err = fmt.Errorf("%s %s: %s", method, to, res.Status)
	}
	return res, err
}
