package lock_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/toolgate/toolgate/registry/lock"
)

const whole = `{
  "version": 1,
  "servers": {
    "files": {
      "origin": {
        "type": "stdio",
        "command": "npx",
        "args": [
          "-y",
          "files-server@2.1.0",
          "${HOME}/notes"
        ]
      },
      "serverInfo": {
        "name": "files",
        "version": "2.1.0"
      },
      "tools": {
        "read": "sha256:a",
        "write": "sha256:b"
      }
    },
    "web": {
      "origin": {
        "type": "http",
        "url": "https://mcp.example/"
      },
      "tools": {}
    }
  }
}
`

// A lock that toolgate wrote is written again byte for byte, whatever the order in which
// its members were.
func TestDeterministic(t *testing.T) {
	f, err := lock.Parse([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, string(f.Bytes())); diff != "" {
		t.Error(diff)
	}
	shuffled, err := lock.Parse([]byte(`{"servers":{"web":{"tools":{},"origin":{"url":"https://mcp.example/","type":"http"}},` +
		`"files":{"tools":{"write":"sha256:b","read":"sha256:a"},"serverInfo":{"version":"2.1.0","name":"files"},` +
		`"origin":{"args":["-y","files-server@2.1.0","${HOME}/notes"],"command":"npx","type":"stdio"}}},"version":1}`))
	if err != nil || string(shuffled.Bytes()) != whole {
		t.Errorf("%v\n%s", err, shuffled.Bytes())
	}
	for range 20 {
		many := &lock.File{Servers: map[string]lock.Server{}}
		for i := range 20 {
			many.Servers[fmt.Sprint("s", i)] = lock.Server{Tools: map[string]string{"b": "2", "a": "1", "c": "3"}}
		}
		if got, err := lock.Parse(many.Bytes()); err != nil || !bytes.Equal(got.Bytes(), many.Bytes()) {
			t.Fatal(err)
		}
	}
}

// What is not a lock of this version is refused, never half read.
func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "no object": "[]", "no version": `{"servers":{}}`, "another version": `{"version":2,"servers":{}}`,
		"unknown member":     `{"version":1,"servers":{},"extra":1}`,
		"unknown in server":  `{"version":1,"servers":{"a":{"origin":{"type":"http"},"tools":{},"trust":true}}}`,
		"duplicate server":   `{"version":1,"servers":{"a":{"origin":{"type":"http"},"tools":{}},"a":{"origin":{"type":"http"},"tools":{}}}}`,
		"duplicate tool":     `{"version":1,"servers":{"a":{"origin":{"type":"http"},"tools":{"x":"1","x":"2"}}}}`,
		"other case":         `{"Version":1,"servers":{}}`,
		"fingerprint number": `{"version":1,"servers":{"a":{"origin":{"type":"http"},"tools":{"x":1}}}}`,
		"invalid UTF-8":      "{\"version\":1,\"servers\":{\"\xff\":{\"origin\":{\"type\":\"http\"},\"tools\":{}}}}",
		"two values":         `{"version":1,"servers":{}} {}`, "cut": whole[:len(whole)/2],
	} {
		if f, err := lock.Parse([]byte(text)); err == nil || f != nil || !strings.Contains(err.Error(), lock.Name) {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	if _, err := lock.Parse([]byte(`{"version":2,"servers":{}}`)); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("another version: %v", err)
	}
}

// An origin has no secret: variables are not expanded, and what looks like one is masked.
func TestOrigin(t *testing.T) {
	for _, tt := range []struct {
		args    []string
		address string
		want    string
	}{
		{args: []string{"--root", "/srv"}, want: "cmd --root /srv"},
		{args: []string{"--api-key", "s3cret"}, want: "cmd --api-key ***"},
		{args: []string{"--token=s3cret"}, want: "cmd --token=***"},
		{args: []string{"--token=${TOKEN}", "--password", "${PASS}"}, want: "cmd --token=${TOKEN} --password ${PASS}"},
		{args: []string{"--token-file", "/run/token"}, want: "cmd --token-file /run/token"},
		{args: []string{"--header", "Authorization: Bearer s3cret", "-H", "X-Api-Key:s3cret", "-H", "X-Mode: fast"}, want: "cmd --header Authorization: Bearer *** -H X-Api-Key:*** -H X-Mode: fast"},
		{args: []string{"--header", "Authorization: Bearer ${T}", "-H", "X-Token:${T:-a b}"}, want: "cmd --header Authorization: Bearer ${T} -H X-Token:${T:-a b}"},
		{args: []string{"--secret", "--verbose"}, want: "cmd --secret --verbose"},
		{args: []string{"postgres://me:s3cret@db/x?sslpassword=s3cret"}, want: "cmd postgres://***@db/x?***"},
		{address: "https://mcp.example/x", want: "https://mcp.example/x"},
		{address: "https://me:s3cret@mcp.example/x?key=s3cret", want: "https://***@mcp.example/x?***"},
	} {
		command, kind := "cmd", "stdio"
		if tt.address != "" {
			command, kind = "", "http"
		}
		if got := lock.NewOrigin(kind, command, tt.args, tt.address).String(); got != tt.want {
			t.Errorf("%v %s: %s, want %s", tt.args, tt.address, got, tt.want)
		}
	}
}

// The secret of an argument is its end, and the argument without it has no secret.
func FuzzSecretArg(f *testing.F) {
	for _, seed := range [][2]string{
		{"--token", "x"}, {"", "--api-key=x"}, {"-H", "X-Token:x "}, {"--header", "Authorization: Bearer  x"}, {"--header", "Authorization: x "}, {"-H", "Key:"},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, before, arg string) {
		_, secret, ok := lock.SecretArg([]string{before, arg}, 1)
		if !ok {
			return
		}
		rest, ends := strings.CutSuffix(arg, secret)
		if !ends {
			t.Fatalf("%q does not end with %q", arg, secret)
		}
		if _, value, found := strings.Cut(rest, ":"); found && (before == "-H" || before == "--header") && secret == "" && strings.TrimSpace(value) != "" {
			t.Errorf("%q keeps %q", arg, value)
		}
	})
}

func TestSecret(t *testing.T) {
	for name, want := range map[string]bool{
		"API_KEY": true, "GITHUB_TOKEN": true, "Authorization": true, "db-password": true, "KEY": true, "DSN": true, "AUTH_HEADER": true,
		"TOKEN_FILE": false, "KEYBOARD": false, "TOKEN_URL": false, "MODE": false, "MONKEY": false,
	} {
		if got := lock.Secret(name); got != want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestDiff(t *testing.T) {
	web := lock.Server{Origin: lock.Origin{Type: "http", URL: "https://a/"}, Tools: map[string]string{"x": "1", "y": "2"}}
	moved, named, grown := web, web, web
	moved.Origin.URL = "https://b/"
	named.Info = lock.Info{Name: "web", Version: "2"}
	grown.Tools = map[string]string{"y": "3", "z": "4"}
	file := func(s lock.Server) *lock.File { return &lock.File{Servers: map[string]lock.Server{"web": s}} }
	for name, tt := range map[string]struct {
		was, now *lock.File
		want     []lock.Difference
	}{
		"nothing":     {file(web), file(web), []lock.Difference{}},
		"no locks":    {nil, nil, []lock.Difference{}},
		"a server":    {nil, file(lock.Server{}), []lock.Difference{{Server: "web", What: "added"}}},
		"gone":        {file(web), nil, []lock.Difference{{Server: "web", What: "removed"}}},
		"moved":       {file(web), file(moved), []lock.Difference{{Server: "web", What: "origin", Was: "https://a/", Now: "https://b/"}}},
		"other name":  {file(web), file(named), []lock.Difference{{Server: "web", What: "serverInfo", Was: " ", Now: "web 2"}}},
		"three tools": {file(web), file(grown), []lock.Difference{{"web", "x", "", "removed", "1", ""}, {"web", "y", "", "changed", "2", "3"}, {"web", "z", "", "added", "", "4"}}},
	} {
		if diff := cmp.Diff(tt.want, lock.Diff(tt.was, tt.now)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// FuzzParse: what is read is written in one way, which reads as the same lock, or it is
// refused.
func FuzzParse(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte(`{"version":1,"servers":{"":{"origin":{"type":"","args":[]},"serverInfo":{"name":"","version":""},"tools":{"\u0000":"\ud83d\ude00"}}}}`))
	f.Add([]byte(`{"version":1.0,"servers":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := lock.Parse(data)
		if err != nil {
			return
		}
		written := read.Bytes()
		again, err := lock.Parse(written)
		if err != nil {
			t.Fatalf("%q is written as %q: %v", data, written, err)
		}
		if !bytes.Equal(again.Bytes(), written) {
			t.Errorf("%q is written in two ways", data)
		}
		if found := lock.Diff(read, again); len(found) != 0 {
			t.Errorf("%q differs from what is written: %v", data, found)
		}
	})
}
