package cli

import (
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"net/url"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
)

// cmdSecretless wants a directory whose files have none of the secrets in a file, one on a
// line: neither as they are nor URL-encoded, in hexadecimal or within base64.
func cmdSecretless(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: [!] secretless DIRECTORY FILE")
	}
	secrets, files, found := strings.Fields(ts.ReadFile(args[1])), 0, ""
	ts.Check(fs.WalkDir(os.DirFS(ts.MkAbs(args[0])), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		text := ts.ReadFile(args[0] + "/" + name)
		for _, secret := range secrets {
			for _, form := range secretForms(secret) {
				if strings.Contains(text, form) {
					found += name + " has " + secret + " as " + form + "\n"
				}
			}
		}
		return nil
	}))
	if (found != "") != neg || files == 0 || len(secrets) == 0 {
		ts.Fatalf("%d files, %d secrets:\n%s", files, len(secrets), found)
	}
}

// secretForms returns the forms in which a secret is looked for.
func secretForms(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), hex.EncodeToString([]byte(secret))}
	for before := range 3 { // the bits at the edges belong to neighbours
		text := append(make([]byte, before), secret...)
		for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			forms = append(forms, encoding.EncodeToString(text)[(8*before+5)/6:8*len(text)/6])
		}
	}
	return forms
}
