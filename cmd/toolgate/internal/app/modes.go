package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/toolgate/toolgate/registry/config"
)

// fileModes warns of files and directories that other users of this machine can read or
// change. The error names those that everybody can change: whoever does so owns
// toolgate, so it does not start. Files that cannot be looked at are the business of
// whoever reads them.
func fileModes(cfg *config.Config) (found []Finding, refused error) {
	look := func(path, what string, secret bool, hint string) {
		mode := shared(path)
		what = fmt.Sprintf("%s %s (mode %#o for group and others)", what, path, mode)
		switch {
		case mode&0o002 != 0:
			refused = errors.Join(refused, fmt.Errorf("%s can be changed by every user of this machine\nhint: %s", what, hint))
		case mode&0o020 != 0:
			found = append(found, warning("file-mode", path, what+" can be changed by its group", hint))
		case secret && mode != 0:
			found = append(found, warning("file-mode", path, what+" can be read by others", hint))
		}
	}
	for _, path := range cfg.Files {
		secret, what := slices.Contains(cfg.SecretFiles, path), "the configuration"
		if secret {
			what = "the configuration, with secrets or hashes of tokens,"
		}
		look(path, what, secret, "chmod go-rwx "+path)
	}
	for path, what := range map[string]string{cfg.State: "the state directory", cfg.Keys: "the key directory"} {
		look(path, what, true, "chmod go-rwx "+path+", or name a directory inside it")
	}
	var keys []string // of toolgate, of its listeners, and of telemetry
	if cfg.Keys != "" {
		keys, _ = filepath.Glob(filepath.Join(cfg.Keys, "*.key")) // fails for broken patterns
	}
	for _, key := range certificateKeys(cfg) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	for _, path := range keys {
		look(path, "the key", true, "chmod go-rwx "+path)
	}
	return found, refused
}

// certificateKeys returns the files of the keys of toolgate's certificates.
func certificateKeys(cfg *config.Config) (paths []string) {
	for _, t := range []*config.TLS{cfg.TLS, cfg.AdminTLS, cfg.Replica.Files()} {
		if t != nil {
			paths = append(paths, t.Key)
		}
	}
	if t := cfg.Telemetry; t != nil && t.Key != "" {
		paths = append(paths, t.Key)
	}
	return paths
}
