package rego

import (
	"archive/tar"
	"bytes"
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
	"github.com/open-policy-agent/opa/v1/loader/filter"

	defaults "github.com/toolgate/toolgate/policy/bundle"
)

const (
	// maxSourceBytes bounds a policy with its data, unpacked.
	maxSourceBytes = 256 << 20
	maxSourceFiles = 10_000
)

// files are the parts of a policy that matter, by slash path without a leading
// slash: Rego that is no test, data documents and the manifest.
type files map[string][]byte

// readSource reads the policy at where: "" is the embedded default, else a
// directory or a bundle archive (.tar.gz). It reads the files that keep wants,
// and looks into a hidden folder if keep wants that, named with a slash at its
// end.
func readSource(where string, keep func(name string) bool) (files, error) {
	if where == "" {
		return readFS(defaults.Files, keep)
	}
	info, err := os.Stat(where)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return readFS(os.DirFS(where), keep)
	}
	f, err := os.Open(where)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readArchive(f, keep)
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

func readFS(fsys fs.FS, keep func(string) bool) (files, error) {
	out := make(files)
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
func readArchive(r io.Reader, keep func(string) bool) (files, error) {
	zr, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("reading gzip: %w", err)
	}
	out := make(files)
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

func (f files) add(name string, r io.Reader, room *int64) error {
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

func (f files) names() []string { return slices.Sorted(maps.Keys(f)) }

// own are the names of the policy's files, without what lies over them.
func (f files) own() []string {
	return slices.DeleteFunc(f.names(), func(name string) bool { return name == overlayName })
}

// revision names the content: the same files give the same revision, wherever
// they came from. Lengths are hashed too, so that no two sets run together.
func (f files) revision() string {
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

// loader hands the files of the policy itself to OPA's bundle reader.
type loader struct {
	files files
	names []string
}

func (f files) loader() *loader { return &loader{files: f, names: f.own()} }

// NextFile implements bundle.DirectoryLoader.
func (l *loader) NextFile() (*bundle.Descriptor, error) {
	if len(l.names) == 0 {
		return nil, io.EOF
	}
	name := l.names[0]
	l.names = l.names[1:]
	return bundle.NewDescriptor(name, "/"+name, bytes.NewBuffer(l.files[name])), nil
}

// WithFilter implements bundle.DirectoryLoader; the files are chosen already.
func (l *loader) WithFilter(filter.LoaderFilter) bundle.DirectoryLoader { return l }

// WithPathFormat implements bundle.DirectoryLoader.
func (l *loader) WithPathFormat(bundle.PathFormat) bundle.DirectoryLoader { return l }

// WithSizeLimitBytes implements bundle.DirectoryLoader; readSource has limited them.
func (l *loader) WithSizeLimitBytes(int64) bundle.DirectoryLoader { return l }

// WithFollowSymlinks implements bundle.DirectoryLoader.
func (l *loader) WithFollowSymlinks(bool) bundle.DirectoryLoader { return l }
