package notice_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/notice"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// A notice is written in the transaction of the ticket's change and then posted to
// each webhook until it is accepted.
func Example() {
	posted := make(chan notice.Body, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body notice.Body
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			log.Fatal(err)
		}
		posted <- body
	}))
	defer receiver.Close()

	dir, err := os.MkdirTemp("", "notice")
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
	sender, err := notice.New(notice.Options{
		DB: db, Link: func(ticket string) string { return "https://gate.example.org/console/approvals/" + ticket },
	}, []notice.Channel{{Webhook: receiver.URL}})
	if err != nil {
		log.Fatal(err)
	}
	sender.Start()
	defer sender.Close()
	tickets, err := approval.New(ctx, db, approval.Options{
		Changed: func(ctx context.Context, tx *sql.Tx, t approval.Ticket, c approval.Change) error {
			return sender.Enqueue(ctx, tx, t, c)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer tickets.Close()

	if _, err := tickets.Claim(ctx, approval.Held{
		Principal: policy.Principal{Subject: "agent-7"}, Server: "standard", Tool: "manage_wallet", Exposed: "manage_wallet",
		Fingerprint: "sha256:f", Revision: "sha256:r", Digest: emptyDigest,
		Approval: policy.Approval{Roles: []string{"approver"}, TTL: time.Hour},
	}); err != nil {
		log.Fatal(err)
	}
	body := <-posted
	fmt.Println(body.Type, body.Data.Requester, body.Data.Tool, body.Data.Roles)
	// Output: approval.requested agent-7 manage_wallet [approver]
}

// emptyDigest is the digest of no arguments.
const emptyDigest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
