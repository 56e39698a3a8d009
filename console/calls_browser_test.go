package console_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/audit/index"
	"github.com/toolgate/toolgate/console"
)

// callQuestions holds that any question about one call has its answer in three clicks from the overview: who,
// what, why, as whom, and what came of it.
func callQuestions(t *testing.T, browser context.Context) {
	_, base := stage(t, scenes[slices.IndexFunc(scenes, func(s scene) bool { return s.name == "normal" })])
	for _, s := range []screen{phone, desktop} {
		t.Run(s.name, func(t *testing.T) {
			p := sitting(t, browser, base, s)
			p.signIn("t-oda", "/console/calls")
			toTheCall := func() {
				p.open("/console/")
				p.press(`main a[href="/console/calls?outcome=denied&since=24h"]`) // the first click
				p.press("main tbody tr:nth-child(2) a")                           // the second one
			}
			toTheCall()
			p.shot("call")
			for question, answer := range map[string]string{
				"who": "payroll-agent (treasurer), person Ada", "with what": "claude-code/2.4.1", "what": "wallet__manage_wallet", "with which input": `"amount": "450"`,
				"why": "transfers above 100 USD are for a person to decide", "by which rule": "transfer_over_threshold", "by which policy": "sha256:4f2a",
				"what to do": "send less than 100 USD", "as whom": "ada@bank.example at wallet", "what came": "T5_POLICY_DENIED", "at which stage": "ended at approve",
				"what was wrong": "a person said no", "when": "ticket denied by ada", "how long": "1.5s", "of what": "sig_01M8MDDY6SZVKW3C6JEN40SF79", "how much": "1234 bytes",
			} {
				if text := p.text(); !strings.Contains(text, answer) {
					t.Errorf("%s: the call does not say %q but:\n%s", question, answer, text)
				}
			}
			for link, answer := range map[string]string{ // the third one
				"/console/policy/ask": "Transfers above the threshold wait for a person", "/console/policy/matrix": "Who may what", "/console/policy/try": "Try a change",
				"/console/calls?id=4bf9": "4bf92f3577b34da6a3ce929d0e0e4736",
			} {
				toTheCall()
				p.press(`main a[href^="` + link + `"]`)
				if text := p.text() + ask[string](p, "location.href"); !strings.Contains(text, answer) {
					t.Errorf("%s: the page does not say %q but:\n%s", link, answer, text)
				}
			}
		})
	}
}

// callsCome holds that an open list of calls shows those that come, until its reader wants to keep it.
func callsCome(t *testing.T, browser context.Context) {
	x := &calls{coming: make(chan index.Call)}
	l := newListener(t, func(o *console.Options) { o.Calls = x })
	server := httptest.NewServer(l)
	t.Cleanup(func() {
		l.Console.Close()
		server.Close()
	})
	p := sitting(t, browser, server.URL, desktop)
	p.signIn("t-audit", "/console/calls?since=1h")
	p.sees("New calls appear here.")
	x.coming <- index.Call{ID: "dec_2", Time: l.Now(), Principal: "<b>agent</b>"}
	p.sees("under way")
	x.coming <- index.Call{ID: "dec_2", Time: l.Now(), Principal: "<b>agent</b>", Outcome: "denied"}
	p.sees("denied")
	if first := ask[string](p, "document.querySelector('tbody tr').id"); first != "dec_2" || ask[int](p, "document.querySelectorAll('tbody tr').length") != 2 || ask[int](p, "document.querySelectorAll('tbody time[title]').length") != 2 {
		t.Errorf("%s comes first:\n%s", first, p.text())
	}
	p.shot("calls-live")
	p.press("#found a[href*='follow=false']")
	p.sees("New calls as they come")
	if at := ask[string](p, "location.search"); at != "?follow=false&since=1h" {
		t.Errorf("the list that stays is at %s", at)
	}
	p.press("main a[href='/console/calls?since=1h']")
	p.sees("New calls appear here.")
}
