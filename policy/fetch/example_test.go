package fetch_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/toolgate/toolgate/policy/fetch"
)

// A fetched bundle becomes the last good copy when the caller keeps it.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "a bundle") }))
	defer server.Close()
	dir, err := os.MkdirTemp("", "policy")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	source := fetch.New(fetch.Options{URL: server.URL + "/bundle.tar.gz", Dir: dir})
	bundle, err := source.Fetch(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := bundle.Keep(); err != nil {
		fmt.Println(err)
		return
	}
	kept, err := source.Kept()
	fmt.Println(kept.Path == bundle.Path, err)
	// Output: true <nil>
}
