package approval_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// A held call waits until a person has approved it. The next identical call gets the
// grant, once; later ones get the stored result.
func Example() {
	dir, err := os.MkdirTemp("", "approval")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	db, err := store.Open(ctx, filepath.Join(dir, "state.db"), store.Migrations())
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	tickets, err := approval.New(ctx, db, approval.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer tickets.Close()

	arguments := []byte(`{"amount":500}`)
	sum := sha256.Sum256(arguments)
	call := approval.Held{
		Principal: policy.Principal{Subject: "agent-7"}, Server: "standard", Tool: "manage_wallet", Exposed: "manage_wallet",
		Fingerprint: "sha256:f", Revision: "sha256:r", Arguments: arguments, Digest: "sha256:" + hex.EncodeToString(sum[:]),
		Approval: policy.Approval{Roles: []string{"approver"}},
	}
	claim := func() approval.Claim {
		c, err := tickets.Claim(ctx, call)
		if err != nil {
			log.Fatal(err) // the call is refused
		}
		fmt.Println(c.Outcome)
		return c
	}

	pending := claim()
	ann := policy.Principal{Subject: "ann", Roles: []string{"approver"}}
	if _, err := tickets.Decide(ctx, approval.Vote{ID: pending.Ticket.ID, Approver: ann, Approve: true}); err != nil {
		log.Fatal(err)
	}
	granted := claim() // the call is sent now, and only now
	if err := tickets.Finish(ctx, granted.Ticket.ID, approval.StateDone, []byte(`{"ok":true}`), ""); err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(claim().Ticket.Result))
	// Output:
	// pending
	// granted
	// replay
	// {"ok":true}
}
