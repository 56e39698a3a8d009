package index_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/audit/index"
)

// A trail has a refused call; the index finds it by a word of its arguments.
func Example() {
	dir, err := os.MkdirTemp("", "index")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o := index.Options{Trail: filepath.Join(dir, "audit"), Owner: "trail-1", File: filepath.Join(dir, "calls.db"), Lock: filepath.Join(dir, "lock")}
	trail, err := audit.Open(o.Trail, audit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = trail.Write(audit.KindOutcome, &audit.Record{
		DecisionID: "dec-1", Principal: audit.Principal{Subject: "agent-7"}, Server: "bank", Exposed: "bank__pay", Outcome: audit.Denied,
		Arguments: json.RawMessage(`{"memo":"Invoice 17"}`),
	})
	if err = errors.Join(err, trail.Close()); err != nil {
		log.Fatal(err)
	}
	if _, err := index.New(o).Rebuild(context.Background(), nil); err != nil { // Run would do it, too
		log.Fatal(err)
	}

	ctx, stop := context.WithCancel(context.Background())
	x, done := index.New(o), make(chan struct{})
	go func() { defer close(done); x.Run(ctx) }()
	page, err := x.Search(ctx, index.Query{Text: "invoice"})
	for ; errors.Is(err, index.ErrStarting); page, err = x.Search(ctx, index.Query{Text: "invoice"}) {
		time.Sleep(time.Millisecond)
	}
	for _, c := range page.Calls {
		fmt.Println(c.Principal, c.Tool, c.Outcome, err)
	}
	stop()
	<-done
	// Output: agent-7 bank__pay denied <nil>
}
