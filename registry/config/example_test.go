package config_test

import (
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/toolgate/toolgate/registry/config"
)

// Load reads mcp.json as MCP clients know it; what is not said has its default.
func ExampleLoad() {
	cfg, err := config.Load(config.Options{
		ReadFile: func(path string) ([]byte, error) {
			if filepath.Base(path) != "mcp.json" {
				return nil, fs.ErrNotExist
			}
			return []byte(`{
				"mcpServers": { "files": { "command": "file-server", "env": { "TOKEN": "${TOKEN}" } } },
				"toolgate": { "limits": { "default": "10/1m" } }, // comments are fine
			}`), nil
		},
		Getenv: func(name string) (string, bool) { return "secret", name == "TOKEN" },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := cfg.Servers[0]
	fmt.Println(s.Name, s.Type, s.Prefix, s.Timeout, s.Env["TOKEN"])
	fmt.Println(cfg.Limits.Default.Count, "calls in", cfg.Limits.Default.Per)
	// Output:
	// files stdio files__ 1m0s secret
	// 10 calls in 1m0s
}
