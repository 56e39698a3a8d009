package decisionlog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/policy"
)

// Decisions of the audit trail are appended to a file in the form of OPA's decision
// logs.
func Example() {
	dir, err := os.MkdirTemp("", "decisions")
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
	trail, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{Instance: "gate-1"})
	if err != nil {
		log.Fatal(err)
	}
	shipper := decisionlog.Open(decisionlog.Options{
		DB: db, Trail: filepath.Join(dir, "audit"), Instances: filepath.Join(dir, "instances"),
		Mask: func(context.Context, json.RawMessage) (policy.Mask, error) { return policy.Mask{}, nil },
	})
	file := filepath.Join(dir, "decisions.jsonl")
	if err := shipper.Apply(ctx, decisionlog.Config{File: file}); err != nil {
		log.Fatal(err)
	}

	if err := trail.Write(audit.KindDecision, &audit.Record{
		DecisionID: "dec-1", Principal: audit.Principal{Subject: "agent-7"}, Tool: "search_internet",
		Policy: audit.Policy{Effect: "allow", Rule: "role-may"}, Input: json.RawMessage(`{}`),
	}); err != nil {
		log.Fatal(err)
	}
	if err := trail.Close(); err != nil {
		log.Fatal(err)
	}
	for lag := uint64(1); lag > 0; {
		if lag, err = shipper.Lag(ctx, "file"); err != nil {
			log.Fatal(err)
		}
	}
	shipper.Close(ctx)

	text, err := os.ReadFile(file)
	if err != nil {
		log.Fatal(err)
	}
	var event decisionlog.Event
	if err := json.Unmarshal(text, &event); err != nil {
		log.Fatal(err)
	}
	fmt.Println(event.DecisionID, event.Path, string(event.Result))
	// Output: dec-1 toolgate/decision {"effect":"allow","rule":"role-may"}
}
