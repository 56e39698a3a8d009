package identity_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/toolgate/toolgate/policy/identity"
)

// A configured token names its subject; a token that nobody knows is refused.
func Example() {
	people, err := identity.New(identity.Config{Tokens: []identity.Token{
		{Subject: "agent-7", Roles: []string{"researcher"}, SHA256: identity.HashToken("a-token-of-agent-7")},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	principal, err := people.Identify(context.Background(), identity.Credential{Bearer: "a-token-of-agent-7"})
	fmt.Println(principal.Subject, principal.Roles, err)
	_, err = people.Identify(context.Background(), identity.Credential{Bearer: "another"})
	fmt.Println(errors.Is(err, identity.ErrUnauthenticated))
	// Output:
	// agent-7 [researcher] <nil>
	// true
}
