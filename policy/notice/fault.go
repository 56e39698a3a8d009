package notice

import "errors"

// Faults of a try are kept, logged and shown, so they are chosen here and in
// package delivery, and what a library or a server says is not repeated: addresses
// hold secrets, and servers quote what they were sent.
var (
	errGone   = errors.New("it answered with status 410: it wants no more notices")
	errSecret = errors.New("the secret after whsec_ is not base64")
	errNoTLS  = errors.New("it offers no encryption, or no sign-in that may be used")
)
