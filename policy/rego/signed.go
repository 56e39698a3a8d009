package rego

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/open-policy-agent/opa/v1/bundle"
	"github.com/open-policy-agent/opa/v1/util"
)

// signatures is the file of a bundle that holds its signature. It is no part
// of the policy: the same files signed anew are the same revision.
const signatures = ".signatures.json"

// signed are the files that a signature vouches for, by name, with the hashes
// that they must have.
type signed map[string]bundle.FileInfo

// name reports whether a file is signed, or some file below a folder, which
// has a slash at its end.
func (s signed) name(name string) bool {
	if _, ok := s[name]; ok || !strings.HasSuffix(name, "/") {
		return ok
	}
	return slices.ContainsFunc(slices.Collect(maps.Keys(s)), func(file string) bool { return strings.HasPrefix(file, name) })
}

// signed verifies the signature of the policy; nil when no key is configured.
// What has no signature then, or one by another, is an error.
func (o Options) signed() (signed, error) {
	if len(o.Keys) == 0 {
		return nil, nil
	}
	f, err := readSource(o.Path, func(name string) bool { return name == signatures })
	if err != nil {
		return nil, err
	}
	content, there := f[signatures]
	if !there {
		return nil, fmt.Errorf("it has no %s, and only signed policies are taken (hint: opa sign --bundle, or opa build --signing-key)", signatures)
	}
	if err := checkJSON(content); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", signatures, err)
	}
	var tokens bundle.SignaturesConfig
	if err := util.UnmarshalJSON(content, &tokens); err != nil {
		return nil, fmt.Errorf("parsing %s: %w", signatures, err)
	}
	names, err := bundle.VerifyBundleSignature(tokens, o.verification())
	if err != nil {
		return nil, fmt.Errorf("verifying its signature: %w", err)
	}
	return names, nil
}

func (o Options) verification() *bundle.VerificationConfig {
	keys := make(map[string]*bundle.KeyConfig, len(o.Keys))
	for id, k := range o.Keys {
		keys[id] = &bundle.KeyConfig{Key: k.Key, Algorithm: k.Algorithm, Scope: k.Scope}
	}
	return bundle.NewVerificationConfig(keys, o.KeyID, o.Scope, nil)
}

// verify holds every file against the signature: one that the policy consists
// of and that is not signed is an error, and so is one that was signed and is
// not there or was changed. What stands beside the policy, such as a README,
// need not be signed: nothing reads it.
func (f files) verify(s signed) error {
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
func (o Options) read() (f files, unchecked bool, err error) {
	if f, unchecked, err = o.readOwn(); err != nil {
		return nil, false, fmt.Errorf("reading policy %q: %w", cmp.Or(o.Name, o.Path), err)
	}
	return f, unchecked, f.overlay(o.Data)
}

// readOwn reads the files of the policy, verified.
func (o Options) readOwn() (f files, unchecked bool, err error) {
	names, err := o.signed()
	if err != nil {
		return nil, false, err
	}
	if f, err = readSource(o.Path, func(name string) bool {
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
