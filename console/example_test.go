package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/toolgate/toolgate/console"
	"github.com/toolgate/toolgate/console/people"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/policy/approval"
)

// A call that the policy holds is approved over HTTP.
func Example() {
	dir, err := os.MkdirTemp("", "console-example-")
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
	tickets, err := approval.New(ctx, db, approval.Options{Dir: filepath.Join(dir, "instances")})
	if err != nil {
		log.Fatal(err)
	}
	defer tickets.Close()

	secrets, err := keys.Open(filepath.Join(dir, "keys"))
	if err != nil {
		log.Fatal(err)
	}
	ann := policy.Principal{Subject: "ann", Roles: []string{"approver"}}
	c, err := console.New(console.Options{
		Options: people.Options{
			Store: db, Keys: secrets,
			Identify: func(_ context.Context, bearer string) (policy.Principal, error) {
				if bearer != "ann's token" {
					return policy.Principal{}, errors.New("unknown token")
				}
				return ann, nil
			},
			Again: func(context.Context, policy.Principal, string) (policy.Principal, error) { return ann, nil },
		},
		Approvals: tickets, Reconciler: tickets, Feed: tickets, Archive: tickets,
		Status: func() console.Status { return console.Status{Ready: true} },
		Held:   tickets.Held, Metrics: http.NotFoundHandler(),
		Audit: func(context.Context, int, bool) iter.Seq2[[]byte, error] { return func(func([]byte, error) bool) {} },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	server := httptest.NewServer(c)
	defer server.Close()

	arguments := []byte(`{"amount":500}`)
	claim, err := tickets.Claim(ctx, approval.Held{
		Principal: policy.Principal{Subject: "agent-7"}, Server: "payments", Tool: "pay", Exposed: "payments__pay", Fingerprint: "sha256:f", Revision: "sha256:r",
		Arguments: arguments, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(arguments)), Rule: "amount-above-threshold",
		Approval: policy.Approval{Roles: []string{"approver"}, TTL: time.Minute},
	})
	if err != nil {
		log.Fatal(err)
	}

	for _, token := range []string{"nobody's token", "ann's token"} {
		req, err := http.NewRequest(http.MethodPost, server.URL+"/v1/approvals/"+claim.Ticket.ID+"/approve", strings.NewReader(`{"reason": "invoice 17"}`))
		if err != nil {
			log.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			log.Fatal(err)
		}
		var answer struct{ State, Detail string }
		if err := json.NewDecoder(res.Body).Decode(&answer); err != nil {
			log.Fatal(err)
		}
		res.Body.Close()
		fmt.Println(res.StatusCode, answer.State+answer.Detail)
	}
	// Output:
	// 401 missing or unknown bearer token
	// 200 approved
}
