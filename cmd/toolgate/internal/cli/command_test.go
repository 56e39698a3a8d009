package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/toolgate/toolgate/audit"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/app"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/clients"
	"github.com/toolgate/toolgate/policy/approval"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry/config"
)

// commands gives every command that help shows.
func commands(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, s := range c.Commands() {
		if s.IsAvailableCommand() {
			all = append(all, commands(s)...)
		}
	}
	return all
}

func TestEveryCommandExplainsItself(t *testing.T) {
	all := commands(rootCommand(&command.Env{}))
	if n := strings.Count("\n"+helpText, "\n# "); n != len(all) {
		t.Errorf("help.md describes %d commands, there are %d", n, len(all))
	}
	for _, c := range all {
		path := c.CommandPath()
		switch {
		case c.Short == "" || unicode.IsUpper([]rune(c.Short)[0]) || strings.HasSuffix(c.Short, "."):
			t.Errorf("%s: %q is no short description in lower case without full stop", path, c.Short)
		case !saysEnough(c.Long):
			t.Errorf("%s: the help has no 2 to 8 lines of at most 100 characters:\n%s", path, c.Long)
		case !strings.Contains(c.Example, "  toolgate "):
			t.Errorf("%s has no example", path)
		case c.RunE == nil || c.Run != nil:
			t.Errorf("%s does not report errors", path)
		}
		var help bytes.Buffer
		c.SetOut(&help)
		if err := c.Help(); err != nil || !strings.Contains(help.String(), "\nExamples:\n  toolgate ") {
			t.Errorf("help of %s has no Examples: %v\n%s", path, err, help.String())
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			word := command.ValueWord(f)
			if f.Usage == "" {
				t.Errorf("%s --%s has no explanation", path, f.Name)
			} else if f.Value.Type() != "bool" && strings.ToUpper(word) != word && command.Choices(word) == nil {
				t.Errorf("%s --%s does not say between backquotes what its value is: %q", path, f.Name, f.Usage)
			}
		})
	}
}

// saysEnough reports whether a help text has from 2 to 8 lines that a terminal shows whole.
func saysEnough(long string) bool {
	n := 0
	for line := range strings.Lines(long) {
		if line = strings.TrimSpace(line); line != "" {
			n++
		}
		if utf8.RuneCountInString(line) > 100 {
			return false
		}
	}
	return 2 <= n && n <= 8
}

// Every command that prints data has the four forms, also for a fault of its own command
// line, wherever -o is. The stdout of others is protocol, or has a form of its own.
func TestEveryReportIsADocument(t *testing.T) {
	var without []string
	for _, c := range commands(rootCommand(&command.Env{})) {
		forms := command.FormsOf(c)
		if forms == nil {
			without = append(without, c.CommandPath())
		} else if diff := cmp.Diff([]string{"table", "wide", "json", "yaml"}, forms[:4]); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.CommandPath(), diff)
		}
		args := strings.Fields(c.CommandPath())[1:]
		for _, line := range [][]string{append([]string{"-o", "json"}, append(args, "--no-such-flag")...), append(args, "--no-such-flag", "--output=json")} {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), line, command.Stdio{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, func(string) (string, bool) { return "", false })
			var got command.Failure
			err := json.Unmarshal(stdout.Bytes(), &got)
			documented := err == nil && got.Error.Code == "USAGE" && got.Error.Message == "unknown flag: --no-such-flag" && got.Error.Exit == command.ExitUsage
			if code != command.ExitUsage || !strings.HasPrefix(stderr.String(), "toolgate: error: unknown flag") || documented != (forms != nil) || forms == nil && stdout.Len() > 0 {
				t.Errorf("%v: exit %d, %s%s", line, code, &stdout, &stderr)
			}
		}
	}
	want := []string{"toolgate audit export", "toolgate audit witness", "toolgate completion", "toolgate ndjson", "toolgate serve", "toolgate stdio"}
	if diff := cmp.Diff(want, without); diff != "" {
		t.Errorf("commands without -o (-want +got)\n%s", diff)
	}
}

// An example has to be a command that parses.
func TestExamplesParse(t *testing.T) {
	for _, c := range commands(rootCommand(&command.Env{})) {
		for line := range strings.Lines(c.Example) {
			if _, piped, ok := strings.Cut(line, " | "); ok {
				line = piped
			}
			line, _, _ = strings.Cut(line[strings.Index(line, "toolgate ")+len("toolgate "):], " #")
			line, _, _ = strings.Cut(line, " < ")
			line, _, _ = strings.Cut(line, " > ")
			root := rootCommand(&command.Env{})
			found, rest, err := root.Find(words(line))
			if err == nil {
				err = found.ParseFlags(rest)
			}
			if err == nil {
				err = found.ValidateArgs(found.Flags().Args())
			}
			if err != nil || found == root {
				t.Errorf("example of %s: %q: %v", c.CommandPath(), line, err)
			}
		}
	}
}

// words splits a line as a shell does, as far as examples go.
func words(line string) (found []string) {
	quote, word := rune(0), ""
	for _, r := range strings.TrimSpace(line) + " " {
		switch {
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case r == quote:
			quote = 0
		case r == ' ' && quote == 0:
			if word != "" {
				found = append(found, word)
			}
			word = ""
		default:
			word += string(r)
		}
	}
	return found
}

// Every code that a toolgate can answer has an exit code that was meant.
func TestExitCodes(t *testing.T) {
	want := map[wire.Code]int{
		wire.ParseError: 2, wire.InvalidEnvelope: 2, wire.MethodNotFound: 2, wire.ToolNotFound: 2, wire.NotFound: 2, wire.InvalidToolInput: 2, wire.TooLarge: 2, wire.InvalidParams: 2,
		wire.Unauthenticated:     3,
		wire.UpstreamUnavailable: 4, wire.SessionLost: 4, wire.StoreUnavailable: 4,
		wire.ToolFailed: 5, wire.ToolTimeout: 5, wire.OutputInvalid: 5,
		wire.PolicyDenied: 10, wire.ApprovalDenied: 10, wire.ApprovalExpired: 10, wire.RateLimited: 10, wire.Overloaded: 10, wire.ToolQuarantined: 10, wire.ConnectionRequired: 10, wire.Stopped: 10,
		wire.ApprovalPending:  11,
		wire.AuditUnavailable: 1, wire.Cancelled: 1, wire.HeaderMismatch: 1, wire.UnsupportedVersion: 1, wire.InternalError: 1,
	}
	got := map[wire.Code]int{}
	for _, row := range wire.Rows() {
		got[row.Code] = command.CodeFor(row.Code)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A result can be a refusal, too: in the dialect mcp, and when a call is held.
func TestVerdicts(t *testing.T) {
	for result, want := range map[string]int{
		`{"content":[]}`:                0,
		`{"content":[],"isError":true}`: 5,
		`{"isError":true,"_meta":{"io.toolgate/error":{"code":"POLICY_DENIED"}}}`:      10,
		`{"isError":true,"_meta":{"io.toolgate/error":{"code":"INVALID_TOOL_INPUT"}}}`: 2,
		`{"isError":true,"_meta":{"io.toolgate/approval":{"status":"pending"}}}`:       11,
		`{"_meta":{"io.toolgate/approval":{"status":"replayed"}}}`:                     0,
		`nothing`: 1,
	} {
		e := &command.Env{Stdio: command.Stdio{Stderr: new(bytes.Buffer)}}
		if got := e.Fail(verdictOf(json.RawMessage(result))); got != want {
			t.Errorf("%s: exit %d, want %d", result, got, want)
		}
	}
}

// What is shipped loads, and the banner's tokens are those that it has.
func TestShippedConfiguration(t *testing.T) {
	cfg, err := config.Load(clients.Options(config.Options{Path: filepath.Join(repository(t), "mcp.json"), Getenv: os.LookupEnv}))
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.Warnings) != 0 {
		t.Errorf("warnings: %v", cfg.Warnings)
	}
	var got []string
	for _, token := range cfg.Identity.Tokens {
		got = append(got, token.Demo())
		if token.Demo() != token.Subject || "demo-"+token.Roles[0] != token.Subject {
			t.Errorf("token %q with roles %v is %q", token.Subject, token.Roles, token.Demo())
		}
	}
	if diff := cmp.Diff(config.DemoTokens, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReachable(t *testing.T) {
	for listener, want := range map[string]string{
		"127.0.0.1:8787": "127.0.0.1:8787",
		"0.0.0.0:8787":   "127.0.0.1:8787",
		"[::]:8787":      "127.0.0.1:8787",
		":8787":          "127.0.0.1:8787",
		"tools.lan:8787": "tools.lan:8787",
		"[::1]:8787":     "[::1]:8787",
	} {
		if got := app.Reachable(listener); got != want {
			t.Errorf("Reachable(%q) = %q, want %q", listener, got, want)
		}
	}
}

// What a command prints passes through the Printer, which knows the form of -o. Protocol
// and exports do not.
func TestStdoutHasOneDoor(t *testing.T) {
	direct := map[string]int{"root.go": 2, "serve.go": 4}
	out := regexp.MustCompile(`\b[es]\.Stdout\b`)
	found, err := filepath.Glob("*.go")
	below, failed := filepath.Glob("*/*.go")
	if found = append(found, below...); err != nil || failed != nil || len(found) < 90 {
		t.Fatalf("%d files, %v, %v", len(found), err, failed)
	}
	for _, file := range found {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(out.FindAll(text, -1)); n != direct[file] && !strings.HasSuffix(file, "_test.go") {
			t.Errorf("%s writes to stdout in %d places, want %d", file, n, direct[file])
		}
	}
}

// The words that flags list are those that records and tickets have.
func TestVocabularies(t *testing.T) {
	for word, want := range map[string]any{
		"KIND":    []audit.Kind{audit.KindOpen, audit.KindDecision, audit.KindOutcome, audit.KindTicket, audit.KindEvent, audit.KindClose},
		"OUTCOME": []audit.Outcome{audit.Allowed, audit.Denied, audit.Held, audit.Limited, audit.Invalid, audit.Unknown, audit.Failed, audit.Cancelled},
		"STATE": []approval.State{approval.StateProposed, approval.StateApproved, approval.StateNeedsConnection, approval.StateDenied, approval.StateExpired, approval.StateSuperseded,
			approval.StateDispatching, approval.StateDone, approval.StateFailed, approval.StateUnknown},
	} {
		if want, got := fmt.Sprint(want), fmt.Sprint(command.Vocabularies[word]); got != want {
			t.Errorf("%s: %s, want %s", word, got, want)
		}
	}
}
