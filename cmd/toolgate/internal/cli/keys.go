package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/keys"
	"github.com/toolgate/toolgate/policy/identity"
)

func keysCommand(e *command.Env) *cobra.Command {
	list := e.Printing("list", "list the keys with their IDs and ages", func(context.Context, []string) (*report.Report, error) {
		found, err := keys.At(e.KeysDir()).Versions()
		return report.Of(append([]keys.Version{}, found...), keysText), err
	})
	show := e.Printing("show [KEY]", "print the public key that signs checkpoints", func(_ context.Context, args []string) (*report.Report, error) {
		found, err := keys.At(e.KeysDir()).Versions()
		if err != nil {
			return nil, err
		}
		found = slices.DeleteFunc(found, func(v keys.Version) bool { // without an ID, the newest key stays
			return v.Public == "" || len(args) > 0 && v.ID != args[0] || len(args) == 0 && !v.Newest
		})
		if len(found) != 1 {
			return nil, command.Usage(fmt.Errorf("%s has no such public key\nhint: list the keys with toolgate keys list", e.KeysDir()))
		}
		return report.Of(found[0], keyText), nil
	})
	rotate := e.Printing("rotate "+strings.Join(keys.Names, "|")+"...", "add a version to keys", func(_ context.Context, names []string) (*report.Report, error) {
		dir := keys.At(e.KeysDir())
		for _, name := range names {
			if !dir.Has(name) {
				return nil, command.Usage(fmt.Errorf("rotating key %s: %w\nhint: toolgate creates its keys when it needs them first", name, keys.ErrUnknown))
			}
		}
		// The record is signed by the former key.
		if err := e.Record(&audit.Record{Principal: audit.Principal{Subject: identity.LocalSubject}, Event: &audit.Event{Name: audit.EventKeysRotated, Added: names}}); err != nil {
			return nil, err
		}
		for _, name := range names {
			if _, err := dir.Rotate(name); err != nil {
				return nil, err
			}
		}
		now, err := dir.Versions()
		made := slices.DeleteFunc(now, func(v keys.Version) bool { return !v.Newest || !slices.Contains(names, v.Name) })
		return report.Of(made, rotatedText), err
	})
	return command.Group("keys", "list and rotate toolgate's own keys", list, show, rotate)
}
