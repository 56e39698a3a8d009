package credential_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/toolgate/toolgate/internal/testkit/corpus"
	"github.com/toolgate/toolgate/internal/testkit/parts"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/registry/config"
	"github.com/toolgate/toolgate/registry/credential"
)

// recipe writes the credential program that docs/identity.md has for a store of passwords to a file.
func recipe(t *testing.T, store string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(corpus.Checkout(t), "docs", "identity.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```sh\n(#!/bin/sh\n# " + store + ".*?)```").FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/identity.md has no recipe for %s", store)
	}
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, found[1], 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// startKeyring starts the GNOME keyring of a new user, on a bus of its own.
func startKeyring(t *testing.T) {
	t.Helper()
	bus, daemon := parts.Need(t, "dbus-daemon"), parts.Need(t, "gnome-keyring-daemon")
	home := t.TempDir()
	for _, name := range []string{"HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"} {
		t.Setenv(name, home)
	}
	address := "unix:path=" + filepath.Join(home, "bus")
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	program.Launch(t, exec.Command(bus, "--session", "--nofork", "--address="+address))
	keyring := exec.Command(daemon, "--foreground", "--unlock", "--components=secrets")
	keyring.Stdin = strings.NewReader("\n") // the password of the keyring
	program.Await(t, "the bus listens", func() bool { _, err := os.Stat(filepath.Join(home, "bus")); return err == nil })
	program.Launch(t, keyring)
}

// The recipe for a keyring gives each person the token that the keyring has for the issuer and subject.
func TestKeyringRecipe(t *testing.T) {
	tool := parts.Need(t, "secret-tool")
	parts.Need(t, "jq")
	startKeyring(t)
	server := config.Server{Name: "jobs", Type: config.TypeHTTP, URL: "http://127.0.0.1:1/mcp", Credential: &config.Credential{
		Type: config.CredentialCommand, Command: []string{recipe(t, "a keyring")}, Timeout: 20 * time.Second,
	}}
	for who, token := range map[string]string{"https://idp.example alice": "canary-1", "https://other.example alice": "canary-2"} {
		program.Await(t, "the keyring stores a token", func() bool {
			store := exec.Command(tool, "store", "--label=jobs", "service", "jobs", "person", who)
			store.Stdin = strings.NewReader(token)
			return store.Run() == nil
		})
	}
	b := credential.NewBroker(nil, credential.BrokerOptions{})
	for _, tt := range []struct{ issuer, subject, token string }{
		{"https://idp.example", "alice", "canary-1"},
		{"https://other.example", "alice", "canary-2"},
		{"https://idp.example", "bob", ""},
		{"", "alice", ""},
	} {
		caller := credential.Caller{Person: credential.Person{Issuer: tt.issuer, Subject: tt.subject}}
		token, err := tokenOf(t.Context(), b, server, caller)
		if _, none := errors.AsType[*credential.Missing](err); token != tt.token || none != (tt.token == "") {
			t.Errorf("%s of %q: %q, want %q: %v", tt.subject, tt.issuer, token, tt.token, err)
		}
	}
}
