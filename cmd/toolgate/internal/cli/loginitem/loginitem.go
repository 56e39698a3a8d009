// Package loginitem makes the operating system start a program when its user logs in: a systemd
// user unit on Linux, a LaunchAgent on macOS, a scheduled task on Windows. Nothing needs the
// rights of an administrator, and nothing starts for other users.
package loginitem

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/toolgate/toolgate/internal/files"
)

// An Item is a program that starts at login and again when it fails.
type Item struct {
	Name    string   // of the unit, the agent or the task: letters, digits, - and _
	Command []string // the absolute path of the program, and its arguments
	Dir     string   // working directory, absolute
	Path    string   // the PATH with which the program finds others
	EnvFile string   // absolute path of a file with NAME=VALUE lines; "" = none
}

// mark is in every file that Install writes, so that it overwrites no other.
const mark = "written by toolgate service install"

// A Manager starts the items of one user. It is safe for concurrent use.
type Manager struct {
	dir string // of the files of items
	kind
}

// kind is what differs between operating systems. In commands {file}, {name} and {uid} are
// filled in.
type kind struct {
	file      string            // name of an item's file; * = the name of the item
	text      func(Item) string // the file
	install   [][]string
	uninstall [][]string
	enabled   []string // succeeds when the item starts at the next login
	running   []string // succeeds when the program runs
	hint      string   // when a command fails
}

// ErrForeign is in the error chain when the file of an item exists and Install did not write it.
var ErrForeign = errors.New("the file was not " + mark)

// New returns the manager of an operating system, by its GOOS. home is the home directory of the
// user, and configHome the XDG_CONFIG_HOME of Linux, "" for its default. The error names the
// systems that have a manager.
func New(goos, home, configHome string) (*Manager, error) {
	k, ok := kinds[goos]
	if !ok {
		return nil, fmt.Errorf("nothing starts toolgate at login on %s\nhint: darwin, linux and windows are known", goos)
	}
	dir := filepath.Join(home, filepath.FromSlash(places[goos]))
	if goos == "linux" && configHome != "" {
		dir = filepath.Join(configHome, "systemd", "user")
	}
	return &Manager{dir, k}, nil
}

// File returns the path of the file of the item with a name. The error is for a user without a
// home directory.
func (m *Manager) File(name string) (string, error) {
	if !filepath.IsAbs(m.dir) {
		return "", errors.New("the home directory is not known\nhint: set HOME")
	}
	return filepath.Join(m.dir, strings.ReplaceAll(m.file, "*", name)), nil
}

// Install writes the file of i, and starts its program now and at each login. When the system
// refuses, the file is as it was before. The error is ErrForeign for a file of somebody else.
func (m *Manager) Install(ctx context.Context, i Item) error {
	file, err := m.File(i.Name)
	if err != nil {
		return err
	}
	text, err := m.Text(i)
	if err != nil {
		return err
	}
	before, err := os.ReadFile(file)
	switch {
	case err == nil && !bytes.Contains(before, []byte(mark)):
		return fmt.Errorf("installing %s: %s: %w\nhint: remove it, or choose another --name", i.Name, file, ErrForeign)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("installing %s: %w", i.Name, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("installing %s: %w", i.Name, err)
	}
	if err := files.Replace(file, []byte(text), 0o600); err != nil {
		return fmt.Errorf("installing %s: %w", i.Name, err)
	}
	for _, command := range m.install {
		if err := m.run(ctx, i.Name, file, command); err != nil {
			restored := os.Remove(file)
			if before != nil {
				restored = files.Replace(file, before, 0o600)
			}
			return errors.Join(fmt.Errorf("installing %s: %w\nhint: %s", i.Name, err, m.hint), restored)
		}
	}
	return nil
}

// Uninstall ends the program of an item, and removes the file. The error is fs.ErrNotExist when
// no item has the name, and ErrForeign when Install did not write the file.
func (m *Manager) Uninstall(ctx context.Context, name string) error {
	file, err := m.File(name)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	switch {
	case err != nil:
		return fmt.Errorf("uninstalling %s: %w", name, err)
	case !bytes.Contains(text, []byte(mark)):
		return fmt.Errorf("uninstalling %s: %s: %w", name, file, ErrForeign)
	}
	var failed error
	for _, command := range m.uninstall {
		failed = errors.Join(failed, m.run(ctx, name, file, command))
	}
	if err := errors.Join(failed, os.Remove(file)); err != nil {
		return fmt.Errorf("uninstalling %s: %w", name, err)
	}
	return nil
}

// A Status says how an item stands.
type Status struct {
	Name      string `json:"name"`
	File      string `json:"file"`
	Installed bool   `json:"installed"` // the file is there
	Enabled   bool   `json:"enabled"`   // it starts at the next login
	Running   bool   `json:"running"`
}

// Status returns the status of the item with a name.
func (m *Manager) Status(ctx context.Context, name string) (Status, error) {
	file, err := m.File(name)
	if err != nil {
		return Status{}, err
	}
	_, absent := os.Stat(file)
	s := Status{Name: name, File: file, Installed: absent == nil}
	s.Enabled = s.Installed && m.run(ctx, name, file, m.enabled) == nil
	s.Running = s.Installed && m.run(ctx, name, file, m.running) == nil
	return s, nil
}

// run runs one command. The error has what the command wrote on stderr.
func (m *Manager) run(ctx context.Context, name, file string, command []string) error {
	fill := strings.NewReplacer("{name}", name, "{file}", file, "{uid}", strconv.Itoa(os.Getuid()))
	words := make([]string, len(command))
	for i, word := range command {
		words[i] = fill.Replace(word)
	}
	cmd := exec.CommandContext(ctx, words[0], words[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return fmt.Errorf("%s: %w: %s", strings.Join(words, " "), err, first)
	}
	return nil
}
