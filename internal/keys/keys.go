// Package keys keeps the keys of toolgate in a directory outside its state: whoever
// can write to the state, or restores its backup, has none of the keys.
//
// Each kind of key has a name and versions. Version 1 is created when it is first
// needed, later ones by Rotate; the newest is used for what is written, and older
// ones verify what was written before. The files are
//
//	NAME-VERSION.key   a secret of 32 bytes, or an Ed25519 private key (PKCS #8, PEM)
//	NAME-VERSION.pub   the public half of the latter (PKIX, PEM), for verifiers elsewhere
//	NAME.count         a number that only grows, see RaiseCount
//
// Files have mode 0600 and appear whole or not at all, so any number of processes may
// share a directory and get the same keys. A Dir is safe for concurrent use.
package keys

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/toolgate/toolgate/internal/files"
)

// The names of toolgate's keys.
const (
	Tickets      = "tickets"       // secret: authenticates tickets, votes and grants in the store
	Checkpoints  = "checkpoints"   // Ed25519: signs checkpoints of the audit trail
	External     = "signer"        // public halves alone: of the keys of audit.signer
	RequestState = "request_state" // secret: authenticates what clients of multi-round calls return
	Arguments    = "arguments"     // secret: keyed digests of arguments in the audit trail
	Credentials  = "credentials"   // secret: encrypts the credentials of people in the store
)

// Names are the names of all keys.
var Names = []string{Arguments, Checkpoints, Credentials, RequestState, Tickets}

// SecretBytes is the length of a secret.
const SecretBytes = 32

// ErrUnknown reports a key that the directory does not have.
var ErrUnknown = errors.New("no such key")

// Dir is a directory of keys.
type Dir struct{ path string }

// Key is one version of a secret. Do not print it.
type Key struct {
	ID     string // VERSION-FINGERPRINT; it reveals nothing about the secret
	Secret []byte // SecretBytes long
}

// Signer is one version of a key pair. Do not print it.
type Signer struct {
	ID  string // VERSION-FINGERPRINT of the public half
	Key ed25519.PrivateKey
}

// Open returns the keys in path, creating the directory (0700) when it is missing.
// It fails when the directory cannot be written to.
func Open(path string) (*Dir, error) {
	if path == "" {
		return nil, fmt.Errorf("opening key directory: this user has no configuration directory\nhint: name a directory with toolgate.keys or --keys, outside the state directory")
	}
	err := os.MkdirAll(path, 0o700)
	if err == nil {
		err = files.Probe(path)
	}
	if err != nil {
		return nil, fmt.Errorf("opening key directory: %w\nhint: name a directory that toolgate can write to with toolgate.keys or --keys, outside the state directory", err)
	}
	return At(path), nil
}

// At returns the keys in path for reading: it creates nothing and never fails. Methods
// that need a key that does not exist return ErrUnknown, except those that create it.
func At(path string) *Dir { return &Dir{path} }

// Path returns the directory.
func (d *Dir) Path() string { return d.path }

// Secret returns the newest version of a secret, creating the first one.
func (d *Dir) Secret(name string) (Key, error) {
	text, version, err := d.newest(name, newSecret)
	if err != nil {
		return Key{}, err
	}
	return d.secret(name, version, text)
}

// Find returns the version of a secret that has an ID. The error is ErrUnknown when the
// directory does not have it. A nil Dir has none.
func (d *Dir) Find(name, id string) (Key, error) {
	if d == nil {
		return Key{}, ErrUnknown
	}
	text, version, err := d.version(name, id)
	if err != nil {
		return Key{}, err
	}
	key, err := d.secret(name, version, text)
	if err == nil && key.ID != id {
		err = fmt.Errorf("reading key %s %s: %w", name, id, ErrUnknown)
	}
	return key, err
}

// Has reports whether the directory has a version of a key.
func (d *Dir) Has(name string) bool {
	versions, err := d.versions(name, ".key")
	return err == nil && len(versions) > 0
}

// Signer returns the newest version of a key pair, creating the first one and the file
// of the public half.
func (d *Dir) Signer(name string) (Signer, error) {
	text, version, err := d.newest(name, newPair)
	if err != nil {
		return Signer{}, err
	}
	s, err := d.pair(name, version, text)
	if err != nil {
		return Signer{}, err
	}
	public, err := publicPEM(s.Key.Public().(ed25519.PublicKey))
	if err == nil {
		err = d.create(fmt.Sprintf("%s-%d.pub", name, version), public)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return Signer{}, fmt.Errorf("writing public key %s: %w", name, err)
	}
	return s, nil
}

// Publics returns the public halves of every version of a key pair, oldest first, from
// the files NAME-VERSION.pub alone. Without such a file there are no keys and no error.
func (d *Dir) Publics(name string) ([]ed25519.PublicKey, error) {
	versions, err := d.versions(name, ".pub")
	if err != nil {
		return nil, fmt.Errorf("reading public keys %s: %w", name, err)
	}
	var all []ed25519.PublicKey
	for _, v := range versions {
		key, err := ReadPublic(filepath.Join(d.path, fmt.Sprintf("%s-%d.pub", name, v)))
		if err != nil {
			return nil, err
		}
		all = append(all, key)
	}
	return all, nil
}

// AddPublic adds the public half of a key pair that is not in the directory, as the next
// version, unless a version has it already.
func (d *Dir) AddPublic(name string, key ed25519.PublicKey) error {
	for {
		all, err := d.Publics(name)
		if err != nil || slices.ContainsFunc(all, func(k ed25519.PublicKey) bool { return k.Equal(key) }) {
			return err
		}
		text, err := publicPEM(key)
		if err == nil {
			err = d.create(fmt.Sprintf("%s-%d.pub", name, len(all)+1), text)
		}
		if !errors.Is(err, fs.ErrExist) { // another process was faster
			return err
		}
	}
}

// ReadPublic reads an Ed25519 public key from a PEM file.
func ReadPublic(file string) (ed25519.PublicKey, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading public key: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("reading public key %s: it is not PEM", file)
	}
	any, err := x509.ParsePKIXPublicKey(block.Bytes)
	key, ok := any.(ed25519.PublicKey)
	if !ok {
		return nil, errors.Join(fmt.Errorf("reading public key %s: it is not an Ed25519 public key", file), err)
	}
	return key, nil
}

// Version is one version of a key, without what is secret about it.
type Version struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"`
	Created time.Time `json:"created"`          // when its file was written
	Newest  bool      `json:"newest"`           // it is the one that is used for what is written
	Public  string    `json:"public,omitempty"` // of a key pair: the public half (PKIX, PEM)
}

// Versions returns the versions of all keys, by name and the oldest first.
func (d *Dir) Versions() ([]Version, error) {
	var found []Version
	for _, name := range Names {
		numbers, err := d.versions(name, ".key")
		if err != nil {
			return nil, fmt.Errorf("listing keys: %w", err)
		}
		for i, number := range numbers {
			v, err := d.describe(name, number)
			if err != nil {
				return nil, err
			}
			v.Newest = i == len(numbers)-1
			found = append(found, v)
		}
	}
	return found, nil
}

// describe returns a version without what is secret about it.
func (d *Dir) describe(name string, number int) (Version, error) {
	file := d.file(name, number)
	text, err := os.ReadFile(file)
	info, missing := os.Stat(file)
	if err = cmp.Or(err, missing); err != nil {
		return Version{}, fmt.Errorf("reading key %s: %w", name, err)
	}
	v := Version{Name: name, Created: info.ModTime().UTC().Truncate(time.Second)}
	if !isPair(text) {
		key, err := d.secret(name, number, text)
		v.ID = key.ID
		return v, err
	}
	pair, err := d.pair(name, number, text)
	if err != nil {
		return Version{}, err
	}
	public, err := publicPEM(pair.Key.Public().(ed25519.PublicKey))
	v.ID, v.Public = pair.ID, string(public)
	return v, err
}

// Rotate adds a version to a key that exists: processes that start later use it. The
// ID of the new version is returned.
func (d *Dir) Rotate(name string) (id string, err error) {
	old, last, err := d.newest(name, func() ([]byte, error) { return nil, ErrUnknown })
	if err != nil {
		return "", err
	}
	fill := newSecret
	if isPair(old) {
		fill = newPair
	}
	text, err := fill()
	if err == nil {
		err = d.create(filepath.Base(d.file(name, last+1)), text)
	}
	if err != nil {
		return "", fmt.Errorf("rotating key %s: %w", name, err)
	}
	if isPair(old) {
		s, err := d.Signer(name)
		return s.ID, err
	}
	key, err := d.secret(name, last+1, text)
	return key.ID, err
}

// newest returns the text of the newest version of a key; fill makes the first.
func (d *Dir) newest(name string, fill func() ([]byte, error)) (text []byte, version int, err error) {
	versions, err := d.versions(name, ".key")
	if err == nil && len(versions) == 0 {
		versions = []int{1}
		if text, err = fill(); err == nil {
			err = d.create(filepath.Base(d.file(name, 1)), text)
		}
	}
	if err == nil || errors.Is(err, fs.ErrExist) { // another process was faster
		version = versions[len(versions)-1]
		text, err = os.ReadFile(d.file(name, version))
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading key %s: %w", name, err)
	}
	return text, version, nil
}

// version returns the text of the version that an ID names.
func (d *Dir) version(name, id string) (text []byte, version int, err error) {
	number, _, _ := strings.Cut(id, "-")
	version, _ = strconv.Atoi(number) // 0 for another text, which no key has
	text, err = os.ReadFile(d.file(name, version))
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrUnknown
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading key %s %s: %w", name, id, err)
	}
	return text, version, nil
}

var keyFile = regexp.MustCompile(`^([a-z_]+)-([1-9][0-9]{0,5})(\.key|\.pub)$`)

// versions returns the versions of a key that have a file with an ending, ascending.
func (d *Dir) versions(name, ending string) ([]int, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var found []int
	for _, e := range entries {
		if m := keyFile.FindStringSubmatch(e.Name()); m != nil && m[1] == name && m[3] == ending {
			version, _ := strconv.Atoi(m[2]) // digits
			found = append(found, version)
		}
	}
	slices.Sort(found)
	return found, nil
}

func (d *Dir) file(name string, version int) string {
	return filepath.Join(d.path, fmt.Sprintf("%s-%d.key", name, version))
}

func (d *Dir) secret(name string, version int, text []byte) (Key, error) {
	if len(text) != SecretBytes {
		return Key{}, fmt.Errorf("reading key %s: %d bytes, want %d\nhint: restore it; without it, what it authenticated counts as unknown", d.file(name, version), len(text), SecretBytes)
	}
	return Key{ID: identify(version, text), Secret: text}, nil
}

func (d *Dir) pair(name string, version int, text []byte) (Signer, error) {
	file := d.file(name, version)
	block, _ := pem.Decode(text)
	if block == nil {
		return Signer{}, fmt.Errorf("reading key %s: it is not PEM", file)
	}
	any, _ := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := any.(ed25519.PrivateKey)
	if !ok {
		return Signer{}, fmt.Errorf("reading key %s: it is not an Ed25519 private key", file)
	}
	return Signer{ID: identify(version, key.Public().(ed25519.PublicKey)), Key: key}, nil
}

// create writes a new file that only its owner can read; fs.ErrExist when there is one.
func (d *Dir) create(name string, text []byte) error {
	return files.Create(filepath.Join(d.path, name), text, 0o600)
}

func newSecret() ([]byte, error) {
	secret := make([]byte, SecretBytes)
	_, _ = rand.Read(secret) // never fails
	return secret, nil
}

func newPair() ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
}

func publicPEM(key ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), err
}

func isPair(text []byte) bool { return bytes.HasPrefix(text, []byte("-----BEGIN")) }

// identify names a version of a key. The fingerprint tells apart keys of two directories.
func identify(version int, key []byte) string {
	sum := sha256.Sum256(append([]byte("toolgate key "), key...))
	return fmt.Sprintf("%d-%s", version, hex.EncodeToString(sum[:6]))
}
