package artifact_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/toolgate/toolgate/internal/store"
	"github.com/toolgate/toolgate/proxy/artifact"
)

// Bytes are kept once under their hash; only a principal that was given them gets
// them back.
func Example() {
	if err := example(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// text/plain hello
	// for bob: no such artifact
}

func example(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "artifacts")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := store.Open(ctx, filepath.Join(dir, "state.db"), store.Migrations())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	artifacts, err := artifact.Open(ctx, filepath.Join(dir, "artifacts"), db, artifact.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, artifacts.Close()) }()
	kept, err := artifacts.Put(ctx, ann, "text/plain", []byte("hello"))
	if err != nil {
		return err
	}
	found, file, err := artifacts.Get(ctx, ann, kept.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	text, err := io.ReadAll(file)
	fmt.Println(found.Type, string(text))
	_, _, refused := artifacts.Get(ctx, bob, kept.ID)
	fmt.Println("for bob:", refused)
	return err
}
