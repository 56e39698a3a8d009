package audit_test

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/notary"
)

// A call is recorded before it is made, and its outcome afterwards. Anyone who has
// the files can verify them.
func Example() {
	root, err := os.MkdirTemp("", "audit")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(root)
	trail, err := audit.Open(root, audit.Options{Instance: "gate-1"})
	if err != nil {
		log.Fatal(err)
	}
	record := &audit.Record{
		CallID: "call-1", DecisionID: "dec-1", Principal: audit.Principal{Subject: "agent-7", Roles: []string{"researcher"}},
		Server: "standard", Tool: "search_internet", Arguments: json.RawMessage(`{"query":"go"}`),
		Policy: audit.Policy{Effect: "allow", Rule: "role-may"},
	}
	if err := trail.Write(audit.KindDecision, record); err != nil {
		log.Fatal(err) // not recorded: the call must not be made
	}
	record.Outcome, record.Stage = audit.Allowed, "close"
	if err := trail.Write(audit.KindOutcome, record); err != nil {
		log.Fatal(err) // not recorded: the result must be withheld
	}
	if err := trail.Close(); err != nil {
		log.Fatal(err)
	}

	report, err := notary.Evidence{}.Verify(root)
	if err != nil {
		log.Fatal(err)
	}
	for _, chain := range report.Chains {
		fmt.Println(chain.Instance, chain.Records, "records, closed:", chain.Closed, "problems:", len(chain.Problems))
	}
	// Output: gate-1 4 records, closed: true problems: 0
}
