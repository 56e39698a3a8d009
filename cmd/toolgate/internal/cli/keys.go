package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/policy/identity"
)

func keysCommand(e *env) *cobra.Command {
	return group("keys", "list and rotate toolgate's own keys",
		command("list", "list the keys with their IDs and ages", func(context.Context, []string) error {
			found, err := keys.At(e.keysDir()).Versions()
			if err != nil {
				return err
			}
			return e.Print("keys", append([]keys.Version{}, found...))
		}),
		command("show [KEY]", "print the public key that signs checkpoints", func(_ context.Context, args []string) error { return e.showKey(args) }),
		command("rotate "+strings.Join(keys.Names, "|")+"...", "add a version to keys", func(_ context.Context, names []string) error { return e.rotateKeys(names) }))
}

// showKey prints a public key: that of an ID, or the newest one.
func (e *env) showKey(args []string) error {
	found, err := keys.At(e.keysDir()).Versions()
	if err != nil {
		return err
	}
	found = slices.DeleteFunc(found, func(v keys.Version) bool {
		return v.Public == "" || len(args) > 0 && v.ID != args[0] || len(args) == 0 && !v.Newest
	})
	if len(found) != 1 {
		return usage(fmt.Errorf("%s has no such public key\nhint: list the keys with toolgate keys list", e.keysDir()))
	}
	return e.Print("key", found[0])
}

// rotateKeys records and adds versions. The record is signed by the former key.
func (e *env) rotateKeys(names []string) error {
	dir := keys.At(e.keysDir())
	for _, name := range names {
		if !dir.Has(name) {
			return usage(fmt.Errorf("rotating key %s: %w\nhint: toolgate creates its keys when it needs them first", name, keys.ErrUnknown))
		}
	}
	err := e.record(&audit.Record{Principal: audit.Principal{Subject: identity.LocalSubject}, Event: &audit.Event{Name: audit.EventKeysRotated, Added: names}})
	for _, name := range names {
		if err == nil {
			_, err = dir.Rotate(name)
		}
	}
	if err != nil {
		return err
	}
	now, err := dir.Versions()
	if err != nil {
		return err
	}
	return e.Print("rotated", slices.DeleteFunc(now, func(v keys.Version) bool { return !v.Newest || !slices.Contains(names, v.Name) }))
}
