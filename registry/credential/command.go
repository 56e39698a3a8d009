package credential

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/toolgate/toolgate/internal/sandbox"
	"github.com/toolgate/toolgate/internal/text"
	"github.com/toolgate/toolgate/registry/config"
)

const (
	maxRuns    = 8                // helper programs at a time
	maxOutput  = maxToken + 4<<10 // bytes of an answer
	maxStderr  = 4 << 10          // bytes that are logged
	unexpiring = time.Minute      // how long an answer without expires_at is kept
)

// helperEnv are the variables of toolgate's environment that helper programs see: they find their
// files and the person's keyring by them. Secrets are not among them.
var helperEnv = []string{"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE", "SSL_CERT_DIR"}

// question is what a helper program reads, one object of JSON on stdin.
type question struct {
	Server    string    `json:"server"`
	URL       string    `json:"url"`
	Audience  string    `json:"audience"` // of the configuration; else url
	Principal principal `json:"principal"`
}

type principal struct {
	Issuer  string `json:"issuer,omitempty"`
	Tenant  string `json:"tenant,omitempty"`
	Subject string `json:"subject"`
}

// answer is what it writes, one object of JSON on stdout. An object without a token says that the
// person has none.
type answer struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"` // absent = it is asked again after a minute
}

// command returns what runs the helper program of a server for a person. A program that fails, takes
// too long, or prints too much or anything else than an answer gives no token.
func (b *Broker) command(server config.Server, who Person) func(context.Context) (*oauth2.Token, error) {
	c := server.Credential
	asked, _ := json.Marshal(question{ // texts only
		Server: server.Name, URL: server.URL, Audience: cmp.Or(c.Audience, server.URL), Principal: principal(who),
	})
	return func(ctx context.Context) (*oauth2.Token, error) {
		select {
		case b.runs <- struct{}{}:
			defer func() { <-b.runs }()
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		out, stderr, err := b.run(ctx, c.Command, asked)
		var said answer
		if err == nil {
			err = decodeAnswer(out, &said)
		}
		b.logStderr(server, stderr, said.Token)
		switch {
		case err != nil:
			return nil, fmt.Errorf("running the credential program: %w", err)
		case said.Token == "":
			return nil, &Missing{Server: server.Name, Reason: "the credential program has none for the caller"}
		}
		token := &oauth2.Token{AccessToken: said.Token, TokenType: "Bearer", Expiry: said.ExpiresAt}
		if token.Expiry.IsZero() {
			token.Expiry = time.Now().Add(unexpiring)
		}
		return token, nil
	}
}

// decodeAnswer reads the answer of a helper program. The error has none of its text.
func decodeAnswer(out []byte, to *answer) error {
	decoder := json.NewDecoder(bytes.NewReader(out))
	if decoder.Decode(to) != nil || decoder.More() {
		return errors.New(`its output is not one object such as {"token": "...", "expires_at": "2030-01-31T12:00:00Z"}`)
	}
	return nil
}

// run runs a program with its stdin until it ends or ctx does. What it started ends with it.
func (b *Broker) run(ctx context.Context, command []string, stdin []byte) (out, stderr []byte, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, nil, errors.New("it is not found\nhint: name it by its absolute path")
	}
	cmd, leash, err := b.opts.Sandbox.Command(sandbox.Server{Path: path, Args: command[1:], Mode: sandbox.Off})
	if err != nil {
		return nil, nil, err
	}
	end := func() { leash.Close() }
	output, complaint := &clipped{most: maxOutput, full: end}, &clipped{most: maxStderr}
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = bytes.NewReader(stdin), output, complaint, time.Second
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); slices.Contains(helperEnv, name) || strings.HasPrefix(name, "LC_") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	err = cmd.Start()
	sandbox.Started(cmd)
	if err == nil {
		stop := context.AfterFunc(ctx, end)
		err = cmd.Wait()
		stop()
	}
	end()
	sandbox.Ended(cmd)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("it took too long: %w", context.Cause(ctx))
	case output.over:
		err = fmt.Errorf("it printed more than %d bytes", maxOutput)
	}
	return output.text, complaint.text, err
}

// clipped keeps the first most bytes that are written to it.
type clipped struct {
	text []byte
	most int
	full func() // called when there are more; nil = nothing
	over bool
}

// Write implements io.Writer.
func (c *clipped) Write(p []byte) (int, error) {
	rest := c.most - len(c.text)
	if c.over = c.over || len(p) > rest; c.over && c.full != nil {
		c.full()
	}
	c.text = append(c.text, p[:min(len(p), rest)]...)
	return len(p), nil
}

// logStderr logs what a helper program wrote to stderr, without the token and the secrets of the
// configuration.
func (b *Broker) logStderr(server config.Server, stderr []byte, token string) {
	if len(stderr) == 0 {
		return
	}
	said := string(stderr)
	for _, secret := range append(server.Secrets(), token) {
		if secret != "" {
			said = strings.ReplaceAll(said, secret, "[redacted]")
		}
	}
	b.opts.Log.Warn("the credential program wrote to stderr", "server", server.Name, "text", text.EscapeHidden(strings.TrimSpace(said)))
}
