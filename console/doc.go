// Package console serves people: health, metrics, a status page, the pages and the
// interface through which approvers decide on held calls, and the audit trail for
// auditors. Agents use another listener, and nothing there can decide a ticket.
//
//	GET  /livez                      200 while the process answers
//	GET  /readyz[?verbose]           200 when calls are served; verbose adds policy, upstreams and warnings
//	GET  /metrics                    metrics for Prometheus
//	GET  /console/                   what needs a person, and what has happened
//	     /console/login, /logout     a session of the pages, by token or provider
//	     /console/approvals          the pages where people decide, with a session
//	     /console/servers[/{name}]   the servers and one of them, for operators, with a session
//	POST /console/backchannel-logout ends sessions for the provider, by logout token
//	GET  /v1/approvals               ?state= &awaiting=me &before= &limit=, newest first
//	GET  /v1/approvals/watch         ?after=, one JSON line per change
//	GET  /v1/approvals/{id}          one ticket, whole
//	POST /v1/approvals/{id}/approve  {"reason"?, "digest"?}
//	POST /v1/approvals/{id}/deny     {"reason", "digest"?}
//	     …/{id}/reconcile            {"outcome": "done"|"failed", "reason"}
//	GET  /v1/audit/tail              ?n= &follow=1, JSON lines
//	GET  /v1/calls                   ?principal= &tool= … &follow=true, the index of calls, newest first
//	GET  /v1/calls/{id}              one call with its records
//	     /connections[/{server}]     the pages where people connect accounts, with a session
//	GET  /connections/callback       where authorization servers send browsers back
//	GET  /v1/connections             ?all=true &subject=, those of the caller or of everybody
//	     /v1/connections/{id}        one connection; DELETE revokes it
//	GET  /v1/tools                   ?server= &state= &text= &limit= &cursor=
//	GET  /v1/tools/{server}/{name}   ?digest= &principal= &roles=, one tool, whole
//	POST …/{name}/accept, …/refuse   {"digest"}, {"digest", "reason"}
//	GET  /v1/limits                  ?kind= &principal= &tool= &limit= &cursor=, the nearest to the end first
//	GET  /v1/sessions                ?principal= &server= &limit= &cursor=, sessions of clients
//	     /v1/sessions/{id}           DELETE ends it
//	GET  /v1/tokens                  ?subject= &limit= &cursor=, those of the configuration
//	     /v1/tokens/{id}             DELETE revokes it, ?reason=
//	POST /v1/servers/{name}/restart  ends the connections of a server and starts it again
//
// Requests under /v1 need a bearer token (RFC 6750); a session does not count there.
// Refusals are problem details (RFC 7807) with two more members: code, for programs,
// and hint. A browser gets refusals as pages.
//
// Each area of pages is a type with the routes of its pages and of its answers: it holds what it shows, and a
// people.Site for the frame, the rights and the record. Console builds the areas that its options have.
//
// Every request passes the same checks first: its Host must name this listener and
// its Origin must be the same host, so that pages of other sites can neither read nor
// decide anything. Everything that others wrote is shown in its visible form, see
// page.Visible: an approver sees the bytes that were judged and nothing else.
package console
