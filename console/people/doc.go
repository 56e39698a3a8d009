// Package people knows the people who use the console: it signs them in and out, serves those whom it
// knows, says what they may, puts the frame around their pages, and records what they did.
//
// A request under /v1 has a bearer token (RFC 6750); a page has a session, which begins with a token or
// at an identity provider. A session does not count under /v1. Each request identifies its sender again,
// so that rights that were taken away are gone at once.
package people
