package rego

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"

	"github.com/toolgate/toolgate/internal/files"
	defaults "github.com/toolgate/toolgate/policy/bundle"
)

const (
	// maxSourceBytes bounds a policy with its data, unpacked.
	maxSourceBytes = 256 << 20
	maxSourceFiles = 10_000
)

// sourceFiles are the parts of a policy that matter, by slash path without a leading
// slash: Rego that is no test, data documents and the manifest.
type sourceFiles map[string][]byte

// ReadFiles reads the files of the policy at where: "" is the embedded default, else a
// directory or a bundle archive (.tar.gz). It reads the files that keep wants, by slash path,
// and looks into a hidden folder if keep wants that, named with a slash at its
// end. It has the bounds of Load.
func ReadFiles(where string, keep func(name string) bool) (sourceFiles, error) {
	if where == "" {
		return readFS(defaults.Files, keep)
	}
	info, err := os.Stat(where)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return readFS(os.DirFS(where), keep)
	}
	archive, err := files.Read(where, maxSourceBytes)
	if err != nil {
		return nil, err
	}
	return readArchive(bytes.NewReader(archive), keep)
}

// Modules returns the Rego of the policy at where by file: a directory, an archive, or "" for
// the embedded default.
func Modules(where string) (map[string][]byte, error) {
	return ReadFiles(where, func(name string) bool { return wanted(name) && path.Ext(name) == ".rego" })
}

// wanted reports whether name belongs to a policy. Hidden files and folders do
// not: mounted configuration keeps its older versions there.
func wanted(name string) bool {
	for part := range strings.SplitSeq(path.Dir(name), "/") {
		if len(part) > 1 && part[0] == '.' {
			return false
		}
	}
	base := path.Base(name)
	switch base {
	case "data.json", "data.yaml", "data.yml", bundle.ManifestExt, bundle.ManifestProtoExt, "patch.json":
		return true
	}
	return base[0] != '.' && strings.HasSuffix(base, ".rego") && !strings.HasSuffix(base, "_test.rego")
}

func readFS(fsys fs.FS, keep func(string) bool) (sourceFiles, error) {
	out := make(sourceFiles)
	room := int64(maxSourceBytes)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && len(name) > 1 && path.Base(name)[0] == '.' && !keep(name+"/"):
			return fs.SkipDir
		case d.IsDir() || !keep(name):
			return nil
		}
		if info, err := fs.Stat(fsys, name); err != nil || !info.Mode().IsRegular() {
			return fmt.Errorf("reading %s: %w", name, cmp.Or(err, files.ErrIrregular)) // to open a pipe would wait for a writer
		}
		f, err := fsys.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // it was only read
		return out.add(name, f, &room)
	})
	return out, err
}

// readArchive unpacks a gzipped tar in memory; its limits count what comes
// out, so that a small archive cannot become a large policy.
func readArchive(r io.Reader, keep func(string) bool) (sourceFiles, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("reading gzip: %w", err)
	}
	out := make(sourceFiles)
	room := int64(maxSourceBytes)
	tr := tar.NewReader(zr)
	for range maxSourceFiles {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading tar: %w", err)
		}
		name := strings.TrimPrefix(path.Clean("/"+h.Name), "/")
		if h.Typeflag != tar.TypeReg || name == "" || !keep(name) {
			continue
		}
		if err := out.add(name, tr, &room); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the archive has more than %d entries", maxSourceFiles)
}

func (f sourceFiles) add(name string, r io.Reader, room *int64) error {
	if _, dup := f[name]; dup {
		return fmt.Errorf("%s is there twice", name)
	}
	if len(f) >= maxSourceFiles {
		return fmt.Errorf("more than %d files", maxSourceFiles)
	}
	content, err := io.ReadAll(io.LimitReader(r, *room+1))
	if err != nil {
		return fmt.Errorf("reading %s: %w", name, err)
	}
	if *room -= int64(len(content)); *room < 0 {
		return fmt.Errorf("policy and data are larger than %d bytes", maxSourceBytes)
	}
	f[name] = content
	return nil
}

func (f sourceFiles) names() []string { return slices.Sorted(maps.Keys(f)) }

// own are the names of the policy's files, without what lies over them.
func (f sourceFiles) own() []string {
	return slices.DeleteFunc(f.names(), func(name string) bool { return name == overlayName })
}

// revision names the content: the same files give the same revision, wherever
// they came from. Lengths are hashed too, so that no two sets run together.
func (f sourceFiles) revision() string {
	h := sha256.New()
	var size [8]byte
	for _, name := range f.names() {
		for _, part := range [][]byte{[]byte(name), f[name]} {
			binary.BigEndian.PutUint64(size[:], uint64(len(part)))
			h.Write(size[:])
			h.Write(part)
		}
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// loader hands the files of the policy itself to OPA's bundle reader, which calls
// NextFile alone.
type loader struct {
	bundle.DirectoryLoader
	files sourceFiles
	names []string
}

// NextFile implements bundle.DirectoryLoader.
func (l *loader) NextFile() (*bundle.Descriptor, error) {
	if len(l.names) == 0 {
		return nil, io.EOF
	}
	name := l.names[0]
	l.names = l.names[1:]
	return bundle.NewDescriptor(name, "/"+name, bytes.NewBuffer(l.files[name])), nil
}

// signatures is the file of a bundle that holds its signature. It is no part
// of the policy: the same files signed anew are the same revision.
const signatures = ".signatures.json"

// signed are the files that a signature vouches for, by name, with the hashes
// that they must have.
type signed map[string]bundle.FileInfo

// name reports whether a file is signed, or some file below a folder, which
// has a slash at its end.
func (s signed) name(name string) bool {
	_, ok := s[name]
	for file := range s {
		ok = ok || strings.HasSuffix(name, "/") && strings.HasPrefix(file, name)
	}
	return ok
}

// signed verifies the signature of the policy; nil when no key is configured.
// What has no signature then, or one by another, is an error.
func (o Options) signed() (signed, error) {
	if len(o.Keys) == 0 {
		return nil, nil
	}
	f, err := ReadFiles(o.Path, func(name string) bool { return name == signatures })
	if err != nil {
		return nil, err
	}
	content, there := f[signatures]
	if !there {
		return nil, fmt.Errorf("it has no %s, and only signed policies are taken (hint: opa sign --bundle, or opa build --signing-key)", signatures)
	}
	var tokens bundle.SignaturesConfig
	if err := errors.Join(checkJSON(content), util.UnmarshalJSON(content, &tokens)); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", signatures, err)
	}
	keys := make(map[string]*bundle.KeyConfig, len(o.Keys))
	for id, k := range o.Keys {
		keys[id] = &bundle.KeyConfig{Key: k.Key, Algorithm: k.Algorithm, Scope: k.Scope}
	}
	names, err := bundle.VerifyBundleSignature(tokens, bundle.NewVerificationConfig(keys, o.KeyID, o.Scope, nil))
	if err != nil {
		return nil, fmt.Errorf("verifying its signature: %w", err)
	}
	return names, nil
}

// verify holds every file against the signature: one that the policy consists
// of and that is not signed is an error, and so is one that was signed and is
// not there or was changed. What stands beside the policy, such as a README,
// need not be signed: nothing reads it.
func (f sourceFiles) verify(s signed) error {
	rest := maps.Clone(s)
	for _, name := range f.names() {
		if err := bundle.VerifyBundleFile(name, *bytes.NewBuffer(f[name]), rest); err != nil {
			return fmt.Errorf("verifying its signature: %w", err)
		}
	}
	if len(rest) > 0 {
		return fmt.Errorf("verifying its signature: it was signed with %s, which are not there",
			strings.Join(slices.Sorted(maps.Keys(rest)), ", "))
	}
	return nil
}

// RevisionOf is the revision of the Engine that Load would make of o, if it can
// make one: the files are read and verified, and nothing is compiled.
func RevisionOf(o Options) (string, error) {
	f, _, err := o.read()
	if err != nil {
		return "", err
	}
	return f.revision(), nil
}

// read reads the policy and what is added to it. unchecked tells that it is
// signed and that nobody said by whom.
func (o Options) read() (f sourceFiles, unchecked bool, err error) {
	if f, unchecked, err = o.readOwn(); err != nil {
		return nil, false, fmt.Errorf("reading policy %q: %w", cmp.Or(o.Name, o.Path), err)
	}
	return f, unchecked, f.overlay(o.Data)
}

// readOwn reads the files of the policy, verified.
func (o Options) readOwn() (f sourceFiles, unchecked bool, err error) {
	names, err := o.signed()
	if err != nil {
		return nil, false, err
	}
	if f, err = ReadFiles(o.Path, func(name string) bool {
		return wanted(name) || names.name(name) || names == nil && name == signatures
	}); err != nil {
		return nil, false, err
	}
	if names == nil {
		_, unchecked = f[signatures]
	} else if err := f.verify(names); err != nil {
		return nil, false, err
	}
	maps.DeleteFunc(f, func(name string, _ []byte) bool { return !wanted(name) })
	return f, unchecked, nil
}
