package trail

import (
	"bytes"
	"slices"
	"strings"

	"github.com/toolgate/toolgate/policy/judgement"
)

// secretNames are the members of arguments whose values are secret, in lower case and
// without - and _, with the part of each that mayName looks for: up to a rare letter.
// token is none of them: wallets call an asset so.
var secretNames = map[string]string{
	"password": "passw", "passwd": "passw", "passphrase": "passph", "secret": "secret", "clientsecret": "secret", "apikey": "apik", "xapikey": "apik",
	"accesstoken": "accesstok", "refreshtoken": "refreshtok", "privatekey": "privatek", "authorization": "authoriz", "cookie": "cook",
}

var withoutDashes = strings.NewReplacer("-", "", "_", "")

// isSecretName reports whether values of this name are secret, however it is spelt.
func isSecretName(name string) bool {
	return secretNames[strings.ToLower(withoutDashes.Replace(name))] != ""
}

// maskNames masks the values of secret names in v at any depth, and returns how many
// there were. A value is also named by a member name next to a member value, as in lists
// of headers and in completion/complete.
func maskNames(v any) int {
	count := 0
	switch v := v.(type) {
	case map[string]any:
		if name, _ := v["name"].(string); isSecretName(name) && v["value"] != nil {
			v["value"] = judgement.Masked
			count++
		}
		for name, item := range v {
			if isSecretName(name) {
				v[name] = judgement.Masked
				count++
			} else {
				count += maskNames(item)
			}
		}
	case []any:
		for _, item := range v {
			count += maskNames(item)
		}
	}
	return count
}

// ending is the end of a part, at most eight letters, one in each byte.
type ending struct{ letters, mask uint64 }

// endings are the ends of the parts of secret names by their last letter.
var endings = func() (all [256][]ending) {
	for _, part := range secretNames {
		var e ending
		for _, c := range []byte(part[max(0, len(part)-8):]) {
			e.letters, e.mask = e.letters<<8|uint64(c), e.mask<<8|0xff
		}
		if last := part[len(part)-1]; !slices.Contains(all[last], e) {
			all[last] = append(all[last], e)
		}
	}
	return all
}()

// lowered maps each byte to its lower case, and - and _ to 0.
var lowered = func() (to [256]byte) {
	for i := range to {
		to[i] = byte(i)
	}
	for c := 'A'; c <= 'Z'; c++ {
		to[c] = byte(c) + 'a' - 'A'
	}
	to['-'], to['_'] = 0, 0
	return to
}()

// mayName reports whether text, which need not be JSON, may hold a secret name: false is
// certain. It reads text once and decodes nothing.
func mayName(text []byte) bool {
	var last uint64 // the letters read last
	for _, b := range text {
		c := lowered[b]
		if c == 0 {
			continue
		}
		last = last<<8 | uint64(c)
		for _, e := range endings[c] {
			if last&e.mask == e.letters {
				return true
			}
		}
	}
	return bytes.Contains(text, []byte(`\u`)) // an escaped letter
}
