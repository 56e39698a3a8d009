package deploy_test

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/toolgate/toolgate/internal/testkit/parts"
)

// The manual page lists the commands of toolgate, with their descriptions.
func TestManualPage(t *testing.T) {
	parts.Long(t, "deploys toolgate")
	help, err := exec.Command(static(t), "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(deployed(t, "debian/toolgate.1"))
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+) +(.+)$`).FindAllStringSubmatch(string(help), -1) {
		if m[1] != "toolgate" { // an example
			want = append(want, m[1]+": "+m[2])
		}
	}
	_, commands, _ := bytes.Cut(page, []byte(".SH COMMANDS\n"))
	commands, _, _ = bytes.Cut(commands, []byte(".SH "))
	for _, m := range regexp.MustCompile(`(?m)^\.TP\n\.B ([a-z-]+)\n(.+)$`).FindAllSubmatch(commands, -1) {
		got = append(got, string(m[1])+": "+string(m[2]))
	}
	slices.Sort(want)
	slices.Sort(got)
	if len(want) < 20 || !slices.Equal(got, want) {
		t.Errorf("docs/deploy/debian/toolgate.1 has\n%s\n\nand toolgate --help\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
