package identity_test

import (
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/nosync"
	"github.com/toolgate/toolgate/policy/identity"
)

// A revocation that a power failure could undo is an error.
func TestRevokingWithoutSync(t *testing.T) {
	fail, ok := nosync.Process(t)
	if !ok {
		return
	}
	list, _ := openRevocations(t, t.TempDir())
	fail()
	if err := list.Add(t.Context(), identity.Revocation{SHA256: identity.HashToken("x")}); err == nil || !strings.Contains(err.Error(), identity.RevokedFile) {
		t.Errorf("revoked: %v", err)
	}
}
