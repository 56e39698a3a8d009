package credential

import "net/url"

// NewReach returns the client with which a server and what it names are asked.
var NewReach = newReach

// CodeOf returns the code in an answer of an authorization server that names itself.
func CodeOf(answer url.Values, issuer string) (string, error) {
	s := started{party: party{Issuer: issuer}, Says: true}
	return s.code(answer)
}
