package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy/bundle"
)

func policyInit(e *env) *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use: "init DIR", Short: "write the default policy into a directory", Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return e.initPolicy(args[0], force) },
	}
	c.Flags().BoolVar(&force, "force", false, "write into a directory that is not empty, and overwrite files")
	return c
}

func (e *env) initPolicy(dir string, force bool) error {
	present, err := os.ReadDir(dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return usage(fmt.Errorf("reading the directory: %w", err))
	case len(present) > 0 && !force:
		return usage(fmt.Errorf("%s is not empty\nhint: name another directory, or overwrite files with --force", dir))
	}
	files, err := starterFiles()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("writing the policy: %w", err)
		}
		if err := os.WriteFile(file, files[name], 0o644); err != nil {
			return fmt.Errorf("writing the policy: %w", err)
		}
	}
	return e.write(fmt.Sprintf("wrote %d files to %s\nnext: toolgate policy check %[2]s; toolgate policy test %[2]s\n", len(files), dir))
}

// starterFiles are the files of a policy of one's own, by slash path.
func starterFiles() (map[string][]byte, error) {
	files := map[string][]byte{".github/workflows/policy.yml": bundle.Workflow}
	add := func(under string, from fs.FS) error {
		return fs.WalkDir(from, ".", func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files[path.Join(under, name)], err = fs.ReadFile(from, name)
			return err
		})
	}
	if err := add("", bundle.Files); err != nil {
		return nil, fmt.Errorf("reading the default policy: %w", err)
	}
	for _, name := range []string{"policy-input.json", "policy-decision.json"} {
		raw, err := schemas.Files.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading schemas: %w", err)
		}
		files["schemas/"+name] = raw
	}
	return files, nil
}
