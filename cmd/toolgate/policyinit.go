package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/docs/schemas"
	"github.com/toolgate/toolgate/policy/bundle"
)

func policyInit(e *env) *cobra.Command {
	var force bool
	c := command("init DIR", "write the default policy into a directory", func(_ context.Context, args []string) error { return e.initPolicy(args[0], force) })
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
	files, err := bundled()
	for _, name := range []string{"policy-input.json", "policy-decision.json"} {
		text, cause := schemas.Files.ReadFile(name)
		err = errors.Join(err, cause)
		files["schemas/"+name] = text
	}
	files[".github/workflows/policy.yml"] = bundle.Workflow
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(file), 0o755)
		}
		if err == nil {
			err = os.WriteFile(file, text, 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("writing the policy: %w", err)
	}
	return e.Print("policy-written", map[string]any{"directory": dir, "files": len(files)})
}

// bundled returns the files of the default policy by their names, with /.
func bundled() (map[string][]byte, error) {
	files := map[string][]byte{}
	return files, fs.WalkDir(bundle.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[name], err = bundle.Files.ReadFile(name)
		}
		return err
	})
}
