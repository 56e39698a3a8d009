package decisionlog_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/ship/decisionlog"
	"github.com/toolgate/toolgate/internal/testkit/postgres"
)

const (
	childDir  = "DECISIONLOG_TEST_DIR"
	childURL  = "DECISIONLOG_TEST_URL"
	childFile = "DECISIONLOG_TEST_FILE"
	childName = "DECISIONLOG_TEST_NAME"
)

func inChild() bool { return os.Getenv(childDir) != "" }

// child is a process that decides and tells until it is killed. It says each
// decision that is recorded.
func child() {
	if err := decideForEver(os.Getenv(childDir)); err != nil {
		panic(err)
	}
}

func decideForEver(dir string) error {
	ctx := context.Background()
	db, err := postgres.State(ctx, filepath.Join(dir, "state.db"))
	if err != nil {
		return err
	}
	trail, err := audit.Open(filepath.Join(dir, "audit"), audit.Options{Durability: audit.OS, Checkpoint: 5 * time.Millisecond})
	if err != nil {
		return err
	}
	s := decisionlog.Open(decisionlog.Options{
		DB: db, Trail: filepath.Join(dir, "audit"), Instances: filepath.Join(dir, "instances"), Mask: unmasked, Poll: 5 * time.Millisecond,
	})
	if err := s.Apply(ctx, decisionlog.Config{URL: os.Getenv(childURL), File: os.Getenv(childFile)}); err != nil {
		return err
	}
	for i := 0; ; i++ {
		id := os.Getenv(childName) + "-" + strconv.Itoa(i)
		if err := trail.Write(audit.KindDecision, record(0, id)); err != nil {
			return err
		}
		fmt.Println(id)
		time.Sleep(time.Millisecond) // a gate does not decide faster, and the trail stays small
	}
}
