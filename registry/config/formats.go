package config

import (
	"cmp"
	"encoding/base64"
	"errors"
	"math"
	"net/mail"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/toolgate/toolgate/internal/guard"
)

// formats are the formats of the published schema. An error is a message for
// people and, on a second line, a hint. It never quotes the value, which may be
// a secret or come from a variable; %q in it stands for the text as written.
var formats = map[string]func(string) error{
	"duration-0s":      between(0, math.MaxInt64),
	"duration-1ms":     between(time.Millisecond, math.MaxInt64),
	"duration-timeout": between(100*time.Millisecond, 10*time.Minute),
	"duration-policy":  between(time.Millisecond, 10*time.Second),
	"duration-1s":      between(time.Second, math.MaxInt64),
	"duration-1m":      between(time.Minute, math.MaxInt64),
	"duration-skew":    between(time.Millisecond, 5*time.Minute),
	"timestamp":        parses(parseTime, "invalid time %q", `write it as "2027-01-31T00:00:00Z"`),
	"rate":             checkRate,
	"rate-or-off":      func(s string) error { return unless(s == "off", checkRate, s) },
	"network":          parses(guard.ParseNetwork, "%q is neither an address nor a network", "write 10.0.0.7 or 10.0.0.0/8"),
	"web-url":          webURL(),
	"secure-url":       webURL(secure),
	"collector-url":    webURL(secure, anonymous),
	"otlp-url":         webURL(secure, anonymous, extensible),
	"base-url":         webURL(base),
	"node-url":         webURL(secure, fragmentless),
	"origin":           webURL(bare),
	"trace-url":        checkTraceURL,
	"policy-path":      func(s string) error { return unless(!remote(s), webURL(), s) },
	"smtp-url":         address("not an smtp or smtps URL", "write smtp://USER:PASSWORD@HOST:587 or smtps://…, with %40 for an @ in the password", []string{"smtp", "smtps"}, mailServer),
	"store-url":        address("not a postgres URL", "write postgres://USER:PASSWORD@HOST/DATABASE, with %40 for an @ in the password, %2F for a / and %23 for a #", []string{"postgres", "postgresql"}, postgreSQL),
	"redis-url":        address("not a redis or rediss URL", "write redis://:PASSWORD@HOST:6379/0 or rediss://…, with %40 for an @ in the password and %2F for a /", []string{"redis", "rediss"}, valkey),
	"mailbox":          parses(mail.ParseAddress, "invalid mail address", `such as "approvals@example.org"`), // RFC 5322, with or without a name before it
	"signing-secret":   parses(secretKey, "begins with whsec_, and the rest is not base64", "take the secret as its maker showed it, or one without whsec_"),
	"glob":             parses(parseGlob, "%q is no pattern", "* stands for anything but a slash, ? for one character"),
	"pointer":          checkPointer,
}

var checkRate = parses(ParseRate, "invalid rate %q", `write COUNT/DURATION, such as "10/1m"`)

// parses makes a format of what a function reads.
func parses[T any](parse func(string) (T, error), message, hint string) func(string) error {
	return func(s string) error {
		if _, err := parse(s); err != nil {
			return complain(message, hint)
		}
		return nil
	}
}

func parseTime(s string) (time.Time, error) { return time.Parse(time.RFC3339, s) }

func parseGlob(s string) (bool, error) { return path.Match(s, "") }

func checkPointer(s string) error {
	if p := jsontext.Pointer(s); !p.IsValid() || s == "" {
		return complain("%q is no JSON Pointer below the root", "write /card/number")
	}
	return nil
}

func checkTraceURL(s string) error {
	if !strings.Contains(s, "{trace_id}") {
		return complain("%q has no {trace_id}", "write https://HOST/trace/{trace_id}")
	}
	return webURL()(s)
}

// complain makes the error of a format.
func complain(message, hint string) error { return errors.New(message + "\n" + hint) }

func unless(fine bool, check func(string) error, s string) error {
	if fine {
		return nil
	}
	return check(s)
}

func between(least, most time.Duration) func(string) error {
	return func(s string) error {
		d, err := time.ParseDuration(s)
		switch {
		case err != nil:
			return complain("invalid duration %q", `write a number with a unit, such as "45s", "15m" or "1h30m"`)
		case d < least:
			return complain("duration %q is too short: want at least "+least.String(), "")
		case d > most:
			return complain("duration %q is too long: want at most "+most.String(), "")
		}
		return nil
	}
}

const hintURL = "write https://HOST/PATH"

// A rule refuses a URL that breaks it. An empty hint is that of the kind of URL.
type rule struct {
	broken        func(u *url.URL) bool
	message, hint string
}

var (
	hostless = rule{func(u *url.URL) bool { return u.Hostname() == "" }, "URL without a host", ""}
	// secure wants https beyond loopback: who can change the traffic could read secrets in it, or
	// make keys.
	secure = rule{
		func(u *url.URL) bool { return u.Scheme != "https" && !guard.Loopback(u.Hostname()) },
		"must be an https URL, except on loopback", "",
	}
	// anonymous refuses a password in an address, which is written where addresses are.
	anonymous = rule{
		func(u *url.URL) bool { return u.User != nil || u.Fragment != "" },
		"URL contains a user or a fragment", `write "token" or "headers" next to it`,
	}
	// extensible refuses an address to which no path can be added.
	extensible = rule{
		func(u *url.URL) bool { return u.RawQuery != "" },
		"URL contains a query", "write the base URL: /v1/traces and /v1/metrics are added to it",
	}
	// fragmentless refuses what a client does not send.
	fragmentless = rule{func(u *url.URL) bool { return u.Fragment != "" }, "URL contains a fragment", ""}
	// base refuses an address to which no path and no query can be added, or with a password.
	base = rule{
		func(u *url.URL) bool { return u.User != nil || u.RawQuery != "" || u.Fragment != "" },
		"URL contains a user, a query or a fragment", "",
	}
	// bare wants the address of a site: a path or a query would be lost.
	bare = rule{
		func(u *url.URL) bool {
			return u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != ""
		},
		"URL has more than a scheme and a host", "write https://HOST",
	}
	mailServer = rule{
		func(u *url.URL) bool {
			return u.Hostname() == "" || u.Port() == "0" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != ""
		},
		"not the URL of a mail server", "",
	}
	// An @ or / in a password would move the end of the host, and parts of the password would be
	// shown as host or path.
	postgreSQL = rule{
		func(u *url.URL) bool {
			return u.Host == "" && !u.Query().Has("host") || u.Fragment != "" || strings.Contains(u.Path+u.RawQuery, "@")
		},
		"not the URL of a PostgreSQL database", "",
	}
	valkey = rule{
		func(u *url.URL) bool {
			return u.Hostname() == "" || !databasePath.MatchString(u.Path) || u.RawQuery != "" || u.Fragment != ""
		},
		"not the URL of a Valkey or Redis server", "",
	}
)

// webURL wants an http or https URL with a host that breaks no rule.
func webURL(rules ...rule) func(string) error {
	return address("not an http or https URL", hintURL, []string{"http", "https"}, append([]rule{hostless}, rules...)...)
}

// address wants a URL of one of the schemes that breaks no rule.
func address(otherwise, hint string, schemes []string, rules ...rule) func(string) error {
	return func(s string) error {
		u, err := url.Parse(s)
		switch {
		case err != nil:
			return complain("invalid URL", hint)
		case !slices.Contains(schemes, u.Scheme):
			return complain(otherwise, hint)
		}
		for _, r := range rules {
			if r.broken(u) {
				return complain(r.message, cmp.Or(r.hint, hint))
			}
		}
		return nil
	}
}

// databasePath is the path of a server's URL: nothing, or the number of a database.
var databasePath = regexp.MustCompile(`^(/[0-9]{0,9})?$`)

// secretKey reads a key as it is, or "whsec_" and its base64.
func secretKey(s string) ([]byte, error) {
	if text, coded := strings.CutPrefix(s, "whsec_"); coded {
		return base64.StdEncoding.DecodeString(text)
	}
	return []byte(s), nil
}
